"""A worker's own GPU, watched through NVML by a thread beside the loop that serves.

    open      in the thread: a driver that hangs must not keep the worker from starting
    read      every ``PERIOD_S``
    report    the loop takes the last reading, unless it is too old

On a machine without GPUs or without NVML nothing is reported, and the worker runs as usual.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from telemetry.gpu_readings import GpuInfo, Gpus, Reading
from telemetry.steady_thread import SteadyThread
from telemetry.xids import CRITICAL, meaning
from transport.wire.reports import GpuHealth, XidCount

log = logging.getLogger(__name__)

PERIOD_S = 2.0
STALE_S = 15.0
CLOSE_S = 1.0


class Watch(Protocol):
    """What a worker's loop asks about its GPU. No call waits."""

    def health(self) -> GpuHealth | None:
        """The last reading; None if there is none yet, or it is too old."""
        ...

    def unfit(self) -> str:
        """Why the GPU must compute nothing more; "" while it is fit."""
        ...

    def final_check(self) -> str:
        """``unfit`` after one more reading, for a worker that fails: its computation may show an
        error of its GPU before the watch reads it. Waits for seconds at most, and ends the
        watch."""
        ...

    def close(self) -> None: ...


class NoWatch:
    """The watch of a worker without a GPU."""

    def health(self) -> GpuHealth | None:
        return None

    def unfit(self) -> str:
        return ""

    def final_check(self) -> str:
        return ""

    def close(self) -> None:
        pass


class GpuWatch:
    """Watches the one GPU that ``open_gpus`` shows, from construction to ``close``.

    While the GPU is unfit, ``on_unfit`` is called with the reason every ``period_s``. It renews a
    mark, which therefore lasts its full time after the end of the worker, however that ends.
    """

    def __init__(
        self,
        open_gpus: Callable[[], Gpus],
        *,
        on_unfit: Callable[[str], None] = lambda reason: None,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_gpus = open_gpus
        self._on_unfit = on_unfit
        self._clock = clock
        self._gpus: Gpus | None = None
        self._num_noted = 0
        self._xids: Counter[int] = Counter()
        # Replaced as a whole by the thread, and only read by the loop.
        self._latest: tuple[float, GpuHealth] | None = None
        self._unfit = ""
        self._hangs = False
        self._failure = ""
        self._said_stale = False
        self._said_unmarked = False
        self._thread = SteadyThread("gpu-watch", self._round, period_s=period_s, clock=clock)
        self._thread.start()

    def health(self) -> GpuHealth | None:
        latest = self._latest
        if latest is None:
            return None
        at_s, health = latest
        stale = self._clock() - at_s > STALE_S
        if stale and not self._said_stale:
            log.warning("the GPU's driver has not answered for %.0f s", STALE_S)
        self._said_stale = stale
        return None if stale else health

    def unfit(self) -> str:
        return self._unfit

    def final_check(self) -> str:
        if not self._unfit and self._thread.stop(within_s=CLOSE_S):
            looking = threading.Thread(target=self._round, name="gpu-last-look", daemon=True)
            looking.start()
            looking.join(CLOSE_S)
            self._hangs = looking.is_alive()
        return self._unfit

    def close(self) -> None:
        stopped = self._thread.stop(within_s=CLOSE_S)
        if stopped and not self._hangs and self._gpus is not None:
            self._gpus.close()

    def _round(self) -> bool:
        """One reading; False where no GPU can be read. After a failed reading the next is tried as
        usual."""
        found = True
        try:
            found = self._looked()
            self._failure = ""
        except Exception as error:
            if str(error) != self._failure:
                self._failure = str(error)
                log.exception("the GPU could not be looked at")
        if self._unfit:
            self._tell_unfit()
        return found

    def _looked(self) -> bool:
        if self._gpus is None:
            self._gpus = self._open_gpus()
        gpus = self._gpus
        if gpus.infos:
            self._look(gpus)
        for note in gpus.notes[self._num_noted :]:
            log.info("GPU health: %s", note)
        self._num_noted = len(gpus.notes)
        return bool(gpus.infos)

    def _look(self, gpus: Gpus) -> None:
        now = self._clock()
        reading = gpus.read(0, now)
        for xid in gpus.xids(now):
            self._xids[xid.number] += 1
            log.warning("Xid %d: %s", xid.number, meaning(xid.number))
            if xid.number in CRITICAL and not self._unfit:
                self._unfit = f"Xid {xid.number}: {meaning(xid.number)}"
        self._latest = now, _health(gpus.infos[0], reading, self._xids)

    def _tell_unfit(self) -> None:
        try:
            self._on_unfit(self._unfit)
        except OSError as error:
            if not self._said_unmarked:
                log.error("cannot mark the GPU as unfit: %s", error)
            self._said_unmarked = True


def _health(info: GpuInfo, reading: Reading, xids: Counter[int]) -> GpuHealth:
    return GpuHealth(
        temperature_c=reading.temperature_c,
        slowdown_c=info.slowdown_c,
        power_w=reading.power_w,
        utilisation_pct=reading.utilisation_pct,
        memory_used_bytes=reading.memory_used_bytes,
        memory_bytes=info.memory_bytes,
        sm_clock_mhz=reading.sm_clock_mhz,
        ecc_uncorrected=reading.ecc_uncorrected,
        remap_pending=reading.remap_pending,
        remap_failed=reading.remap_failed,
        nvlink_errors=reading.nvlink_errors,
        xids=tuple(XidCount(number, times) for number, times in sorted(xids.items())),
    )
