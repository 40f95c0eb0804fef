"""Describes where and how a result was made, for its file."""

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "uvicorn", "uvloop", "pyzmq", "redis")


def describe(arguments: Sequence[str], module: str = "bench") -> dict[str, Any]:
    """The environment of a benchmark that is a module of this repository."""
    return describe_command(f"python -m {module} {shlex.join(without_folders(arguments))}".rstrip())


def describe_command(command: str) -> dict[str, Any]:
    """The environment of ``command``: this machine, which may not be the server's."""
    return {
        "command": command,
        "commit": commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "load_average": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": sys.version.split()[0],
        "gpus": gpus(),
        "clock_resolution_ns": round(1e9 * time.get_clock_info("perf_counter").resolution),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def gpus() -> list[str]:
    """Name, driver and memory of every NVIDIA GPU; empty without nvidia-smi."""
    return gpus_said("name,driver_version,memory.total")


def gpus_said(fields: str) -> list[str]:
    """What nvidia-smi says of every NVIDIA GPU; empty without nvidia-smi."""
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, check=True, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.strip().splitlines()


def without_folders(arguments: Sequence[str]) -> list[str]:
    """The arguments without folders of this machine and without keys."""
    shown = [Path(a).name if a.startswith("/") else a for a in arguments]
    for i, argument in enumerate(shown):
        name, is_given, _ = argument.partition("=")
        if name == "--api-key" and is_given:
            shown[i] = "--api-key=***"
        elif name == "--api-key" and i + 1 < len(shown):
            shown[i + 1] = "***"
    return shown


def commit() -> str:
    """The id of the commit, with ``-dirty`` if files differ from it. In an image or an archive,
    which is no checkout: the value of BATON_COMMIT, or "unknown"."""
    if given := os.environ.get("BATON_COMMIT"):
        return given
    try:
        return _git("rev-parse", "--short=12", "HEAD") + (
            "-dirty" if _git("status", "--porcelain", "--", ":!bench/results") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return " ".join(line.partition(":")[2].split())
    return "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
