"""Readings of every GPU at a steady pace, in a thread beside the load."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from telemetry.gpu_readings import GpuInfo, Gpus, Reading, Xid
from telemetry.steady_thread import SteadyThread


class Sampler:
    """Reads each GPU once every ``period_s`` between enter and exit; times are ``clock``'s.

    ``readings`` and ``xids`` only grow, and may be looked at while it runs.
    """

    def __init__(
        self, gpus: Gpus, *, period_s: float = 1.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._gpus = gpus
        self._period_s = period_s
        self._clock = clock
        self._thread = SteadyThread("gpu-sampler", self._round, period_s=period_s, clock=clock)
        self.readings: tuple[list[Reading], ...] = tuple([] for _ in gpus.infos)
        self.xids: list[Xid] = []
        self.lost: list[str] = []

    @property
    def infos(self) -> tuple[GpuInfo, ...]:
        return self._gpus.infos

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._gpus.notes, *self.lost)

    def sample(self) -> None:
        """One reading of each GPU, now."""
        now = self._clock()
        for info, readings in zip(self._gpus.infos, self.readings, strict=True):
            readings.append(self._gpus.read(info.index, now))
        self.xids += self._gpus.xids(now)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A driver that hangs must not keep the report from being written.
        if self._thread.stop(within_s=10 * self._period_s):
            self._gpus.close()
        else:
            self.lost.append("the driver stopped answering: readings end early")

    def _round(self) -> bool:
        if self._gpus.infos:
            self.sample()
        return bool(self._gpus.infos)
