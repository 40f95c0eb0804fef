"""Checks that the packages of workers are installed: the coordinator's are a part of them."""

from importlib.util import find_spec

from telemetry.version import install_command

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
