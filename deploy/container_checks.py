"""The checks of ``baton doctor`` for docker-compose.yml: Docker, its access to GPUs, SELinux.

No finding is a failure: ``baton up`` needs no Docker.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from deploy.findings import Finding

_TIMEOUT_S = 10.0
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_ENFORCED = Path("/sys/fs/selinux/enforce")
_CONTAINERS_LABELS = ("container_file_t", "container_ro_file_t", "svirt_sandbox_file_t")
_TOOLKIT = (
    "install NVIDIA's container toolkit, then nvidia-ctk runtime configure --runtime=docker and "
    "restart Docker; or use CDI, see docs/compose.md"
)


def containers(
    *, on_gpus: bool, code: Path, environ: Mapping[str, str], enforced: Path = _ENFORCED
) -> Iterator[Finding]:
    """Findings about containers; none without a docker command. ``code``: folder of .env."""
    try:
        engine = _engine(environ)
    except FileNotFoundError:
        return
    except (OSError, subprocess.SubprocessError, ValueError):
        yield Finding("ok", "containers", "Docker does not answer; only compose needs it")
        return
    yield Finding("ok", "containers", f"Docker {engine.get('ServerVersion', '?')} answers")
    if on_gpus:
        yield _access_to_gpus(engine)
    options = engine.get("SecurityOptions") or []
    if any("selinux" in option for option in options) and _content(enforced) == "1":
        yield _label(_model_dir(code))


def _engine(environ: Mapping[str, str]) -> dict[str, Any]:
    """What Docker says about itself. Raises OSError, SubprocessError, ValueError."""
    answer = subprocess.run(
        ["docker", "info", "--format", "{{json .}}"], env=dict(environ),
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=True,
    ).stdout  # fmt: skip
    return msgspec.json.decode(answer, type=dict[str, Any])


def _access_to_gpus(engine: dict[str, Any]) -> Finding:
    if "nvidia" in (engine.get("Runtimes") or {}):
        return Finding("ok", "containers", "the runtime nvidia is registered with Docker")
    folders = engine.get("CDISpecDirs") or []
    for folder in map(Path, folders):
        if found := sorted([*folder.glob("*nvidia*.yaml"), *folder.glob("*nvidia*.json")]):
            text = f"GPUs by CDI ({found[0]}): use docker-compose.cdi.yml"
            return Finding("ok", "containers", text)
    if not folders and any([*Path(each).glob("*nvidia*")] for each in _CDI_FOLDERS):
        advice = 'set "features": {"cdi": true} in daemon.json (Docker 25 or newer), restart Docker'
        return Finding("warn", "containers", "Docker does not use the CDI files here", advice)
    return Finding("warn", "containers", "Docker has no access to the GPUs", _TOOLKIT)


def _label(model_dir: Path | None) -> Finding:
    shown = model_dir or "MODEL_DIR"
    advice = f"chcon -Rt container_file_t {shown}, and setsebool -P container_use_devices on"
    if model_dir is None:
        return Finding(
            "warn", "containers", "SELinux lets containers read labelled files only", advice
        )
    try:
        label = os.getxattr(model_dir, "security.selinux").decode(errors="replace").rstrip("\0")
    except OSError as error:
        label = f"none, {error.strerror}"
    if any(known in label for known in _CONTAINERS_LABELS):
        return Finding("ok", "containers", f"SELinux lets containers read {model_dir}")
    text = f"SELinux lets no container read {model_dir} (its label: {label})"
    return Finding("warn", "containers", text, advice)


def _model_dir(code: Path) -> Path | None:
    found = re.findall(r"^MODEL_DIR='?([^'\n]+)'?$", _content(code / ".env"), re.MULTILINE)
    return code / found[-1] if found else None


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
