"""Readings of every GPU at a steady pace, in a thread beside the load."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from telemetry.gpu_readings import GpuInfo, Gpus, Reading, Xid
from telemetry.steady_thread import SteadyThread


@dataclass(frozen=True)
class Observed:
    """Readings by GPU, taken at the same moments, on the sampler's clock."""

    infos: tuple[GpuInfo, ...]
    readings: tuple[Sequence[Reading], ...]
    xids: Sequence[Xid]
    notes: tuple[str, ...]

    def json(self) -> list[dict[str, Any]]:
        """``{"at_s", "gpus": [{"index", ...}]}`` for each moment; seconds from the first one."""
        moments = list(zip(*self.readings, strict=False))
        return [
            {
                "at_s": moment[0].at_s - moments[0][0].at_s,
                "gpus": [
                    {"index": info.index, **_figures(reading)}
                    for info, reading in zip(self.infos, moment, strict=True)
                ],
            }
            for moment in moments
        ]


class Sampler:
    """Reads each GPU once every ``period_s`` between enter and exit, with times of ``clock``.

    ``readings`` and ``xids`` only grow.
    """

    def __init__(
        self, gpus: Gpus, *, period_s: float = 1.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._gpus, self._period_s, self._clock = gpus, period_s, clock
        self._thread = SteadyThread("gpu-sampler", self._sample, period_s=period_s, clock=clock)
        self._lost: tuple[str, ...] = ()
        self.infos: tuple[GpuInfo, ...] = gpus.infos
        self.readings: tuple[list[Reading], ...] = tuple([] for _ in gpus.infos)
        self.xids: list[Xid] = []

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._gpus.notes, *self._lost)

    @property
    def observed(self) -> Observed:
        return Observed(self.infos, self.readings, self.xids, self.notes)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A driver that hangs must not keep the report from being written.
        if self._thread.stop(within_s=10 * self._period_s):
            self._gpus.close()
        else:
            self._lost = ("the driver stopped answering: readings end early",)

    def _sample(self) -> bool:
        """Read each GPU once; False if there is no GPU."""
        now = self._clock()
        for info, readings in zip(self.infos, self.readings, strict=True):
            readings.append(self._gpus.read(info.index, now))
        if self.infos:
            self.xids += self._gpus.xids(now)
        return bool(self.infos)


def _figures(reading: Reading) -> dict[str, Any]:
    memory = reading.memory_used_bytes
    return {
        "utilization": reading.utilisation_pct,
        "temperature_c": reading.temperature_c,
        "memory_temperature_c": reading.memory_temperature_c,
        "power_w": reading.power_w,
        "memory_used_gib": None if memory is None else memory / 2**30,
        "sm_clock_mhz": reading.sm_clock_mhz,
        "memory_clock_mhz": reading.memory_clock_mhz,
        "ecc_uncorrected": reading.ecc_uncorrected,
        "slowdowns": sorted(reading.slowdowns),
    }
