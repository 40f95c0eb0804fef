"""A worker's membership with its coordinator: hello, welcome, heartbeats, loss of the coordinator.

1. The worker sends Hello until a Welcome comes; a refusal ends the process.
2. While welcomed, it sends a Heartbeat every ``heartbeat_s`` from its own loop.
3. When no message came for ``dead_after_s``, the connection has been closed for ``CLOSED_S``, or
   another coordinator answers, ``receive`` yields ``Lost``: the worker drops every request and
   sends Hello again.
4. While lost, it replaces its connection every ``dead_after_s`` without a message. It waits for a
   coordinator without limit. But one that is connected and leaves ``MAX_UNANSWERED`` connections in
   a row unanswered ends the process.
"""

import logging
from collections.abc import Callable
from typing import Final, Literal

from transport.wire.channel import WorkerChannel
from transport.wire.errors import BatonError, DeadlineExceeded
from transport.wire.messages import (
    Alive,
    Cancel,
    Decode,
    Dismissed,
    DropPrefix,
    ExpectHandoff,
    FromWorker,
    Generate,
    Goodbye,
    Heartbeat,
    Hello,
    Move,
    PeerJoined,
    PeerLeft,
    Prefill,
    Refused,
    Release,
    Role,
    Targets,
    ToWorker,
    Welcome,
)
from transport.wire.reports import GpuHealth, WorkerGauges
from transport.wire.spread import SpreadGroup

Work = (
    PeerJoined | PeerLeft | SpreadGroup | DropPrefix
    | Prefill | ExpectHandoff | Decode | Generate | Move | Cancel | Release
)  # fmt: skip
ORDERS: dict[Role, tuple[type[Work], ...]] = {
    "prefill": (Prefill, Cancel, Release, PeerJoined, PeerLeft, SpreadGroup, DropPrefix),
    "decode": (
        ExpectHandoff,
        Decode,
        Generate,
        Move,
        Cancel,
        Release,
        PeerJoined,
        PeerLeft,
        SpreadGroup,
        DropPrefix,
    ),
    "colocated": (
        Generate,
        ExpectHandoff,
        Decode,
        Move,
        Cancel,
        Release,
        PeerJoined,
        PeerLeft,
        SpreadGroup,
        DropPrefix,
    ),
}
"""The messages that the coordinator sends to a worker of each role."""
ORDERS_OF_ANY: tuple[type[Work], ...] = (Prefill, *ORDERS["decode"])
"""The messages that the coordinator sends to a worker of any role."""
Lost = Literal["lost"]
LOST: Final = "lost"
HELLO_EVERY_S = 1.0
MAX_UNANSWERED = 3
CLOSED_S = 0.5
"""Twice the time after which a coordinator fences a worker whose connection is closed. A worker
that knows it leaves the processors to the next coordinator."""

log = logging.getLogger(__name__)


class JoinRefused(BatonError):
    """The coordinator refused this worker; the message says why."""


class Session:
    """One worker's membership with its coordinator. Not thread-safe: the worker's loop calls it.

    ``in_socket_s``: the longest time that the last received messages can have been in the socket:
    since the previous poll, or 0 if they came while ``receive`` waited.
    """

    def __init__(self, channel: WorkerChannel, hello: Hello, clock: Callable[[], float]) -> None:
        self._channel = channel
        self._hello = hello
        self._clock = clock
        self._welcome: Welcome | None = None
        self._former: Welcome | None = None  # by the coordinator that was lost
        self._num_unanswered = 0
        self._heard_at = self._renewed_at = clock()
        self._next_beat_at = clock()
        self._looked_at = clock()
        self.in_socket_s = 0.0
        self.dismissed = False
        """True if the coordinator that was told that this worker drains needs it no more, or is
        lost."""
        self._early: list[Work | Lost] = []  # came with the welcome, while joining

    @property
    def welcomed(self) -> bool:
        return self._welcome is not None

    @property
    def targets(self) -> Targets:
        """The targets of the coordinator that welcomed this worker last."""
        welcome = self._welcome or self._former
        assert welcome is not None, "never welcomed"
        return welcome.targets

    def join(self, timeout_s: float, *, give_up: Callable[[], bool] = lambda: False) -> None:
        """Send Hello until welcomed, or until ``give_up``, called every ``HELLO_EVERY_S``, returns
        True.

        Raises JoinRefused, DeadlineExceeded, ProtocolMismatch.
        """
        deadline = self._clock() + timeout_s
        while not self.welcomed and not give_up():
            if self._clock() >= deadline:
                raise DeadlineExceeded(
                    who=self._hello.instance,
                    waited_for=f"a welcome from the coordinator at {self._channel.endpoint}",
                    after_s=timeout_s,
                    got="no answer",
                )
            self._early = self.receive(min(HELLO_EVERY_S, timeout_s))

    def send(self, message: FromWorker) -> None:
        self._channel.send(message)

    def receive(self, timeout_s: float, *, awake_s: float = 0.0) -> list[Work | Lost]:
        """The messages about work that have come. Waits at most ``timeout_s``, without sleep for
        the first ``awake_s``, and never past the next heartbeat. Raises DeadlineExceeded."""
        if self._welcome is None:
            self._send_hello()
        work, self._early = self._early, []
        for message in self._look(0.0 if work else timeout_s, awake_s):
            self._heard_at = self._clock()
            self._num_unanswered = 0
            self._sort(message, work)
        if self._welcome and self._clock() - self._heard_at > self._welcome.dead_after_s:
            log.warning(
                "no message from coordinator %s for %g s",
                self._welcome.coordinator,
                self._welcome.dead_after_s,
            )
            self._lose(work)
            self._renew()
        elif self._welcome and (closed_s := self._channel.closed_s) > CLOSED_S:
            coordinator = self._welcome.coordinator
            log.warning("no connection to coordinator %s for %.1f s", coordinator, closed_s)
            self._lose(work)
        self._renew_if_silent()
        return work

    def beat(
        self,
        gauges: Callable[[], WorkerGauges],
        held: Callable[[], tuple[tuple[str, int], ...]],
        gpu: Callable[[], GpuHealth | None] = lambda: None,
    ) -> None:
        """Send a heartbeat if one is due; the callables are only called then."""
        if self._welcome is None or self._clock() < self._next_beat_at:
            return
        self._next_beat_at = self._clock() + self._welcome.heartbeat_s
        dropped = self._channel.malformed_dropped
        self.send(Heartbeat(gauges(), held(), gpu(), malformed_dropped=dropped))

    def wake(self) -> None:
        """End the wait of the current ``receive`` or of the next; a signal handler may call it."""
        self._channel.wake()

    def leave(self, *, draining: bool = False, unfit: str = "") -> None:
        self.dismissed = self._welcome is None
        self.send(Goodbye(draining=draining, unfit=unfit))

    def _look(self, timeout_s: float, awake_s: float) -> list[ToWorker]:
        messages = self._channel.receive(0.0)
        self.in_socket_s = self._clock() - self._looked_at if messages else 0.0
        wait_s = min(timeout_s, self._next_beat_at - self._clock())
        if not messages and wait_s > 0:
            messages = self._channel.receive(wait_s, awake_s=awake_s)
        self._looked_at = self._clock()
        return messages

    def _renew_if_silent(self) -> None:
        """Replace the connection if it has brought no message for ``dead_after_s``."""
        if self._welcome is not None or self._former is None:
            return
        now = self._clock()
        if now - max(self._heard_at, self._renewed_at) <= self._former.dead_after_s:
            return
        self._num_unanswered = self._num_unanswered + 1 if self._channel.connected else 0
        if self._num_unanswered >= MAX_UNANSWERED:
            raise DeadlineExceeded(
                who=self._hello.instance,
                waited_for=f"a welcome from the coordinator at {self._channel.endpoint}",
                after_s=now - self._heard_at,
                got=f"no answer on {MAX_UNANSWERED} connections",
            )
        self._renew()

    def _renew(self) -> None:
        self._renewed_at = self._clock()
        self._channel.renew()

    def _send_hello(self) -> None:
        if self._clock() >= self._next_beat_at:
            self._next_beat_at = self._clock() + HELLO_EVERY_S
            self.send(self._hello)

    def _sort(self, message: ToWorker, work: list[Work | Lost]) -> None:
        match message:
            case Welcome():
                self._welcome = message
                self._next_beat_at = self._clock()
                if self._former is None or self._former.coordinator == message.coordinator:
                    log.info("joined coordinator %s", message.coordinator)
                else:
                    former = self._former.coordinator
                    log.info("joined coordinator %s after %s", message.coordinator, former)
            case Dismissed():
                self.dismissed = True
            case Refused(reason=reason):
                raise JoinRefused(reason)
            case Alive(coordinator=coordinator):
                if self._welcome and coordinator != self._welcome.coordinator:
                    successor = coordinator or "a coordinator that does not know this worker"
                    log.warning("%s took over from %s", successor, self._welcome.coordinator)
                    self._lose(work)
            case _:
                if self._welcome is not None:
                    work.append(message)

    def _lose(self, work: list[Work | Lost]) -> None:
        assert self._welcome is not None, "lost without having joined"
        self._former, self._welcome, self.dismissed = self._welcome, None, True
        self._next_beat_at = self._clock()
        work.clear()
        work.append(LOST)
