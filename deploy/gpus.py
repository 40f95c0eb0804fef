"""Which NVIDIA GPUs this machine offers, without importing torch."""

import os
import re
import subprocess

_ANSWER_TIMEOUT_S = 20


def count_gpus() -> int:
    """GPUs that ``nvidia-smi`` lists and ``CUDA_VISIBLE_DEVICES`` leaves visible; 0 without one."""
    num_listed = sum(line.startswith("GPU ") for line in _listing().splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_listed
    # CUDA stops at the first entry that names no device; "-1" is the customary way to say none.
    names = [name.strip() for name in visible.split(",")]
    return min(num_listed, sum(name not in ("", "-1") for name in names))


def listed_gpus() -> list[str]:
    """The UUIDs of the GPUs that ``nvidia-smi`` lists, visible or not."""
    return re.findall(r"^GPU .*\(UUID: (GPU-[^)]+)\)", _listing(), re.MULTILINE)


def _listing() -> str:
    try:
        return subprocess.run(
            ["nvidia-smi", "--list-gpus"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
