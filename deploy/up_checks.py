"""What ``baton up`` checks before it starts any process: packages, and settings that it only passes
on."""

import logging
from collections.abc import Mapping
from importlib.util import find_spec

from telemetry.version import install_command

# The coordinator's packages are a part of a worker's.
_WORKER = {"torch": "worker", "safetensors": "worker"}
_GPU = {"triton": "worker", "cupy": "gpu"}


def require_packages(device: str) -> None:
    """Raises ValueError with the command that installs what is missing."""
    needed = _WORKER | (_GPU if device == "cuda" else {})
    for package, extra in needed.items():
        if find_spec(package) is None:
            raise ValueError(
                f"{package}: is not installed, and workers need it: {install_command(extra)}"
            )


def check_service_settings(environ: Mapping[str, str]) -> None:
    """Check settings of services. Raises ValueError naming the setting."""
    max_open = environ.get("BATON_MAX_OPEN", "").strip() or "1"
    if not (max_open.isascii() and max_open.isdigit() and int(max_open) > 0):
        raise ValueError(f"BATON_MAX_OPEN: {max_open!r} is not a whole number of at least 1")
    level = environ.get("BATON_LOG_LEVEL", "").strip() or "info"
    names = logging.getLevelNamesMapping()
    if level.upper() not in names:
        known = ", ".join(name.lower() for name in names)
        raise ValueError(f"BATON_LOG_LEVEL: {level!r} is none of {known}")
