"""Readings of every GPU at a steady pace, in a thread beside the load."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bench.gpu.readings import GpuInfo, Gpus, Reading, Xid


class Sampler:
    """Reads each GPU once every ``period_s`` between enter and exit; times are ``clock``'s.

    ``readings`` and ``xids`` only grow, and may be looked at while it runs.
    """

    def __init__(
        self, gpus: Gpus, *, period_s: float = 1.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if period_s <= 0:
            raise ValueError(f"period_s: {period_s} is not positive")
        self._gpus = gpus
        self._period_s = period_s
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
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
        self._stop.set()
        # A driver that hangs must not keep the report from being written.
        self._thread.join(10 * self._period_s)
        if self._thread.is_alive():
            self.lost.append("the driver stopped answering: readings end early")
        else:
            self._gpus.close()

    def _run(self) -> None:
        due_at = self._clock()
        while self._gpus.infos and not self._stop.wait(max(0.0, due_at - self._clock())):
            self.sample()
            due_at += self._period_s
