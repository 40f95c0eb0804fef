"""The NVIDIA GPUs of this machine by ``nvidia-smi``, without importing torch."""

import os
import subprocess
from dataclasses import dataclass

_TIMEOUT_S = 20.0
_FIELDS = "index,uuid,name,driver_version,memory.used,memory.total,mig.mode.current"


@dataclass(frozen=True)
class ListedGpu:
    """One GPU as the driver lists it, even if CUDA_VISIBLE_DEVICES hides it."""

    index: int
    uuid: str
    name: str
    driver: str
    used_mib: int
    total_mib: int
    in_mig_mode: bool


def listed_gpus() -> list[ListedGpu]:
    """The GPUs that nvidia-smi lists. Raises FileNotFoundError without a driver, OSError or
    SubprocessError if it fails."""
    output = subprocess.run(
        ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    ).stdout
    return [_parse(line) for line in output.splitlines() if line.strip()]


def count_gpus() -> int:
    """Number of GPUs that CUDA_VISIBLE_DEVICES leaves visible; 0 without a working driver."""
    try:
        num_listed = len(listed_gpus())
    except (OSError, subprocess.SubprocessError):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_listed
    # CUDA stops at the first entry that names no device; "-1" is the customary way to say none.
    names = [name.strip() for name in visible.split(",")]
    return min(num_listed, sum(name not in ("", "-1") for name in names))


def _parse(line: str) -> ListedGpu:
    index, uuid, name, driver, used, total, mig = [cell.strip() for cell in line.split(",")]
    return ListedGpu(int(index), uuid, name, driver, _mib(used), _mib(total), mig == "Enabled")


def _mib(cell: str) -> int:
    """MiB of a cell; 0 if the GPU does not report it, as one that shares the host's memory."""
    return int(cell) if cell.isdigit() else 0
