"""Where and how a result was made, for the file that holds it."""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "uvicorn", "uvloop", "pyzmq", "redis")


def describe(arguments: Sequence[str], module: str = "bench") -> dict[str, Any]:
    return {
        "command": " ".join([f"python -m {module}", *arguments]),
        "commit": commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "load_average": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES},
    }


def commit() -> str:
    """The commit's id, with ``-dirty`` when files differ from it; "unknown" outside git."""
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
