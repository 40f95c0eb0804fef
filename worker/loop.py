"""The life of a worker process, the same in both pools.

join     say hello until welcomed
serve    receive, step, heartbeat; the pool's ``step`` is the role's own loop body
drain    after SIGTERM: finish what is held, or give it back at the deadline
leave    say goodbye

A worker whose GPU is no longer fit takes no new work, finishes what it can, and stays: it keeps
the lease, so that no other worker comes to that GPU before somebody has looked at it. It tells the
coordinator why, also when it ends or fails, so that its successor gets another GPU.
"""

import logging
import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Protocol

from transport.wire.errors import BatonError, ExportLost
from transport.wire.messages import WorkerGauges
from transport.wire.session import LOST, Session, Work
from worker.gpu_watch import Watch
from worker.stall import StallGuard

JOIN_TIMEOUT_S = 60.0
IDLE_S = 1.0
_LOOK_AT_MEMORY_S = 0.5

log = logging.getLogger(__name__)


class Pool(Protocol):
    """A role's own part: what it does with a message, and one round of its loop."""

    def handle(self, message: Work) -> None: ...

    def step(self) -> None:
        """Schedule, launch, process the previous result; returns at once without work."""
        ...

    def wait_s(self) -> float:
        """How long the loop may sleep for a message: 0 with work at hand."""
        ...

    def drop_all(self) -> None:
        """The coordinator is gone: end every request without a word."""
        ...

    def give_back(self) -> None:
        """The drain's deadline: report every request as failed, to be retried elsewhere."""
        ...

    def gauges(self) -> WorkerGauges: ...

    def held(self) -> tuple[tuple[str, int], ...]:
        """(request id, attempt) of every request not ended here."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it can take part in serving; until then it is welcome, but not of use."""
        ...

    @property
    def empty(self) -> bool:
        """Whether pages and state slots are all free."""
        ...


class WorkerLoop:
    """Runs one pool under one session until it is told to stop."""

    def __init__(
        self,
        session: Session,
        pool: Pool,
        gpu: Watch,
        stall: StallGuard,
        *,
        drain_timeout_s: float,
        on_waiting: Callable[[], None],
        on_ready: Callable[[], None],
        on_stopping: Callable[[], None],
        memory_lost: Callable[[], str] = lambda: "",
    ) -> None:
        """``memory_lost`` says why peers cannot open this worker's memory any more, if so."""
        self._session = session
        self._pool = pool
        self._gpu = gpu
        self._stall = stall
        self._drain_timeout_s = drain_timeout_s
        self._on_waiting = on_waiting
        self._on_ready = on_ready
        self._on_stopping = on_stopping
        self._memory_lost = memory_lost
        self._memory_problem = ""
        self._look_at_memory_at = -math.inf
        self._said_ready = False
        self._said_unfit = False
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
                self._receive()
                self._pool.step()
                self._session.beat(self._pool.gauges, self._pool.held, self._gpu.health)
                self._say_how_it_stands()
                self._take_no_more_if_unfit()
                self._stop_if_memory_is_lost()
        except Exception:
            self._blame_the_gpu_if_unfit()
            raise
        finally:
            self._stall.stop()
        self._session.leave(unfit=self._gpu.unfit())
        if self._memory_problem:
            raise ExportLost(self._memory_problem)

    def _receive(self) -> None:
        # NOTE: Python runs a handler before a wait or when the signal breaks it off. One that
        # arrives in between only shows after the wait, hence IDLE_S.
        for message in self._session.receive(min(IDLE_S, self._pool.wait_s())):
            if message == LOST:
                self._pool.drop_all()
                self._said_unfit = False  # the next coordinator does not know
            else:
                self._pool.handle(message)

    def _say_how_it_stands(self) -> None:
        """Until it is ready, every round: whoever started this waits for a sign of life."""
        if self._said_ready:
            return
        if self._pool.ready:
            self._on_ready()
            self._said_ready = True
        else:
            self._on_waiting()

    def _take_no_more_if_unfit(self) -> None:
        reason = self._gpu.unfit()
        if not reason or self._said_unfit or not self._session.welcomed:
            return
        log.error("draining, no new work: %s; the GPU needs a reset", reason)
        self._session.leave(draining=True, unfit=reason)
        self._said_unfit = True

    def _stop_if_memory_is_lost(self) -> None:
        """Peers that have it open finish; one that joins could pull from nobody."""
        now = time.monotonic()
        if self._stop_requested or now < self._look_at_memory_at:
            return
        self._look_at_memory_at = now + _LOOK_AT_MEMORY_S
        self._memory_problem = self._memory_lost()
        if self._memory_problem:
            log.error("draining, to start anew: %s", self._memory_problem)
            self._stop_requested = True

    def _blame_the_gpu_if_unfit(self) -> None:
        reason = self._gpu.last_look()
        if reason:
            log.error("failed on an unfit GPU: %s", reason)
            with suppress(BatonError):  # what made it fail is raised
                self._session.leave(draining=True, unfit=reason)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True
        self._session.wake()

    def _drained(self) -> bool:
        if not self._stop_requested:
            return False
        if self._drain_deadline is None:
            self._drain_deadline = time.monotonic() + self._drain_timeout_s
            self._on_stopping()
            self._session.leave(draining=True)
        if time.monotonic() >= self._drain_deadline:
            self._pool.give_back()
            return True
        return self._pool.empty
