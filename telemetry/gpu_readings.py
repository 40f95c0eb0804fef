"""Plain values about a GPU: its constant properties, and one reading of its changing figures.

``None``: this GPU or driver does not report the figure.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class GpuInfo:
    """The constant properties of a GPU. ``slowdown_c`` is the temperature at which the hardware
    slows down, ``power_limit_w`` the limit that is set."""

    index: int
    uuid: str
    name: str
    driver: str
    memory_bytes: int
    slowdown_c: float | None = None
    power_limit_w: float | None = None
    max_sm_clock_mhz: float | None = None


@dataclass(frozen=True)
class Reading:
    """One reading of one GPU at ``at_s`` (seconds on the reader's clock).

    ``slowdowns`` are the reasons for which the clocks are lowered now, by the names in nvml.py;
    ``ecc_uncorrected`` and ``nvlink_errors`` (CRC, replay and recovery, all links) count since the
    driver was loaded.
    """

    at_s: float
    utilisation_pct: float | None = None
    memory_used_bytes: int | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    slowdowns: frozenset[str] = frozenset()
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    nvlink_errors: int | None = None


@dataclass(frozen=True)
class Xid:
    """An error that the driver reported about a GPU (-1: it did not say which one), with its number
    in NVIDIA's Xid catalogue."""

    at_s: float
    gpu: int
    number: int


class Gpus(Protocol):
    """The GPUs of this machine. Calls block for milliseconds, and without a limit when the driver
    hangs, so a loop that serves must not make them. ``gpu`` is an index into ``infos``."""

    @property
    def infos(self) -> tuple[GpuInfo, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Which figures cannot be read here, and why."""
        ...

    def read(self, gpu: int, at_s: float) -> Reading: ...

    def xids(self, at_s: float) -> list[Xid]:
        """The errors reported since the last call."""
        ...

    def close(self) -> None: ...


class NoGpus:
    """A machine without GPUs, or whose GPUs cannot be read; ``reason`` says why."""

    infos: tuple[GpuInfo, ...] = ()

    def __init__(self, reason: str) -> None:
        self.notes = (f"no GPU: {reason}",)

    def read(self, gpu: int, at_s: float) -> Reading:
        raise AssertionError("there is no GPU to read")

    def xids(self, at_s: float) -> list[Xid]:
        return []

    def close(self) -> None:
        pass
