"""What is known about a GPU, and what it says of itself at one moment: plain values.

``None`` means that this GPU or driver does not offer the figure; it is never a guess.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class GpuInfo:
    """What does not change while it runs. ``slowdown_c`` is the temperature at which the
    hardware slows itself down, ``power_limit_w`` the cap it is set to."""

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
    """One sample of one GPU at ``at_s`` (seconds on the sampler's clock).

    ``slowdowns`` are the reasons for which the clocks are held down now, by the names in
    nvml.py; ``ecc_uncorrected`` and ``nvlink_errors`` (CRC, replay and recovery, all links) count
    since the driver was loaded.
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
    """An error that the driver reported about a GPU, -1 where it does not say which; numbers as in
    NVIDIA's Xid catalogue."""

    at_s: float
    gpu: int
    number: int


class Gpus(Protocol):
    """GPUs of this machine, or of none. Calls block for milliseconds, and for ever when the driver
    hangs: not for a loop that serves. ``gpu`` counts as ``infos`` do."""

    @property
    def infos(self) -> tuple[GpuInfo, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What cannot be seen here, and why; for the report."""
        ...

    def read(self, gpu: int, at_s: float) -> Reading: ...

    def xids(self, at_s: float) -> list[Xid]:
        """The errors reported since the last call."""
        ...

    def close(self) -> None: ...


class NoGpus:
    """A machine without a GPU, or one whose GPUs cannot be asked; ``reason`` says which."""

    infos: tuple[GpuInfo, ...] = ()

    def __init__(self, reason: str) -> None:
        self.notes = (f"no GPU: {reason}",)

    def read(self, gpu: int, at_s: float) -> Reading:
        raise AssertionError("there is no GPU to read")

    def xids(self, at_s: float) -> list[Xid]:
        return []

    def close(self) -> None:
        pass
