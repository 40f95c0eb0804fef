"""The life of a worker process.

join     say hello until welcomed
serve    rounds of the worker (worker.py), and heartbeats
drain    after SIGTERM: finish what is held, or give it back at the deadline; an idle worker stays
         until the coordinator has no prompt under way that only this worker could decode
leave    say goodbye

A worker whose GPU is unfit takes no new work, finishes what it can, and stays until it is told to
end. It tells the coordinator why. The GPU is marked (gpu_watch.py, gpu_locks/marks.py), so that no
worker gets it for a while after this one has ended.
"""

import logging
import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from telemetry.notify import Progress, notify
from transport.wire.errors import BatonError, ExportLost
from transport.wire.session import Session
from worker.gpu_watch import Watch
from worker.stall import StallGuard

if TYPE_CHECKING:
    from worker.worker import Worker


JOIN_TIMEOUT_S = 60.0
IDLE_S, LEAVING_S = 1.0, 0.1
_LOOK_AT_MEMORY_S = 0.5

log = logging.getLogger(__name__)


class Supervisor:
    """The supervisor that started this process; without one, nothing is sent."""

    def __init__(self) -> None:
        self.waiting = Progress("waiting for a worker to pull from")
        """Reports that the worker is not ready yet. Repeated as a sign of life."""

    def ready(self) -> None:
        """Report that the worker serves."""
        notify(READY="1", STATUS="serving")

    def stopping(self) -> None:
        """Report that the worker drains, and will end."""
        notify(STOPPING="1", STATUS="draining")


class WorkerLoop:
    """Runs one worker under one session until it is told to stop."""

    def __init__(
        self,
        session: Session,
        worker: "Worker",
        gpu: Watch,
        stall: StallGuard,
        supervisor: Supervisor,
        *,
        drain_timeout_s: float,
        memory_lost: Callable[[], str] = lambda: "",
    ) -> None:
        """``memory_lost``: why peers cannot open this worker's memory any more; "" while they
        can."""
        self._session = session
        self._worker = worker
        self._gpu = gpu
        self._stall = stall
        self._supervisor = supervisor
        self._drain_timeout_s = drain_timeout_s
        self._memory_lost = memory_lost
        self._memory_problem = ""
        self._look_at_memory_at = -math.inf
        self._reported_ready = False
        self._reported_unfit = False
        self._stop_requested = False
        self._drain_deadline: float | None = None

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)
        self._session.join(JOIN_TIMEOUT_S, give_up=lambda: self._stop_requested)
        if not self._session.welcomed:
            return
        try:
            while not self._drained():
                self._stall.moved()
                # NOTE: Python runs a signal's handler before a wait, or when the signal interrupts
                # it. A signal that arrives in between is handled after the wait, hence IDLE_S.
                self._worker.round(self._longest_wait_s)
                self._session.beat(self._worker.gauges, self._worker.held, self._gpu.health)
                self._report_ready()
                self._drain_if_gpu_unfit()
                self._drain_if_memory_lost()
        except Exception:
            self._log_if_gpu_unfit()
            raise
        finally:
            self._stall.stop()
        self._session.leave()
        if self._memory_problem:
            raise ExportLost(self._memory_problem)

    def _report_ready(self) -> None:
        """Tell the supervisor once that the worker is ready; until then, report in every round why
        it waits, as a sign of life."""
        if self._reported_ready:
            return
        if self._worker.ready:
            self._supervisor.ready()
            self._reported_ready = True
        else:
            self._supervisor.waiting()

    def _drain_if_gpu_unfit(self) -> None:
        if not self._session.welcomed:
            self._reported_unfit = False  # the next coordinator has not been told
            return
        reason = self._gpu.unfit()
        if not reason or self._reported_unfit:
            return
        log.error("draining, no new work: %s; the GPU needs a reset", reason)
        self._session.leave(draining=True, unfit=reason)
        self._reported_unfit = True

    def _drain_if_memory_lost(self) -> None:
        """Drain once the exported memory is gone: peers that have it open can finish, but a new
        peer could not open it."""
        now = time.monotonic()
        if self._stop_requested or now < self._look_at_memory_at:
            return
        self._look_at_memory_at = now + _LOOK_AT_MEMORY_S
        self._memory_problem = self._memory_lost()
        if self._memory_problem:
            log.error("draining, to be restarted: %s", self._memory_problem)
            self._stop_requested = True

    def _log_if_gpu_unfit(self) -> None:
        reason = self._gpu.final_check()
        if reason:
            log.error("failed on an unfit GPU: %s", reason)
            with suppress(BatonError):  # the error that made the worker fail is raised instead
                self._session.leave(draining=True, unfit=reason)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True
        self._session.wake()

    @property
    def _longest_wait_s(self) -> float:
        """An idle worker that drains looks often whether its coordinator is gone."""
        leaving = self._drain_deadline is not None and self._worker.empty
        return LEAVING_S if leaving else IDLE_S

    def _drained(self) -> bool:
        if not self._stop_requested:
            return False
        if self._drain_deadline is None:
            self._drain_deadline = time.monotonic() + self._drain_timeout_s
            self._supervisor.stopping()
            self._session.leave(draining=True)
        if time.monotonic() >= self._drain_deadline:
            self._worker.fail_all()
            return True
        return self._worker.empty and self._session.dismissed
