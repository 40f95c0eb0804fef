"""Marks on GPUs that no worker gets for a while, and how they are removed.

A mark is the file GPU-….unfit in the lock folder. Its end is counted in seconds since the boot
(CLOCK_BOOTTIME), so changing the system clock has no effect, and a mark of an earlier boot has
ended: a reboot resets the GPU. A mark that an operator made by hand, with any other text, stays
until its file is removed.
"""

import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

UNFIT_S = 3600.0
_SUFFIX = ".unfit"
_MAX_BYTES = 4096


class _Text(msgspec.Struct, frozen=True):
    why: str
    boot_id: str
    until_boottime_s: float


@dataclass(frozen=True)
class UnfitMark:
    """A GPU that no worker gets for ``left_s`` more seconds; infinite for a mark without an end."""

    gpu: str
    why: str
    left_s: float
    path: Path

    def __str__(self) -> str:
        """
        >>> str(UnfitMark("GPU-a", "Xid 48", 3541.0, Path("x")))
        'GPU-a is unfit for another 60 min (Xid 48)'
        """
        left = "without an end" if math.isinf(self.left_s) else f"for another {self._minutes} min"
        return f"{self.gpu} is unfit {left} ({self.why})"

    @property
    def _minutes(self) -> int:
        return math.ceil(self.left_s / 60)


def mark_unfit(folder: Path, gpu: str, why: str, *, for_s: float) -> None:
    """Mark a GPU, so that no worker gets it for ``for_s`` seconds from now. Raises OSError."""
    text = _Text(why, _boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME) + for_s)
    unfinished = folder / f".{gpu}.{os.getpid()}"
    unfinished.write_bytes(msgspec.json.encode(text) + b"\n")
    unfinished.chmod(0o644)
    unfinished.rename(folder / f"{gpu}{_SUFFIX}")


def unfit_gpus(folder: Path) -> dict[str, UnfitMark]:
    """The marks that have not ended, by GPU."""
    found = {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        mark = _read(path)
        if mark is not None and mark.left_s > 0:
            found[mark.gpu] = mark
    return found


def how_to_clear(marks: Iterable[UnfitMark]) -> str:
    """The commands with which an operator resets these GPUs and clears their marks."""
    marks = list(marks)
    gpus = ",".join(mark.gpu for mark in marks)
    files = " ".join(str(mark.path) for mark in marks)
    return f"reset with nvidia-smi -r -i {gpus}, then clear with rm {files}"


def _read(path: Path) -> UnfitMark | None:
    gpu = path.name.removesuffix(_SUFFIX)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        return UnfitMark(gpu, f"its mark cannot be read: {error.strerror}", math.inf, path)
    try:
        text = msgspec.json.decode(content, type=_Text)
    except msgspec.DecodeError:
        why = " ".join(content.decode(errors="replace").split())
        return UnfitMark(gpu, why or "marked by hand", math.inf, path)
    if text.boot_id != _boot_id():
        return None
    left_s = text.until_boottime_s - time.clock_gettime(time.CLOCK_BOOTTIME)
    return UnfitMark(gpu, text.why, left_s, path)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
