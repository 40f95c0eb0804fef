"""Effects: what follows from an event, as plain values, and the outbox that collects them.

requests/ decides them, and effect_runner.py carries them out when the event is over. They are
msgspec structs because one is made for each token, and a frozen dataclass takes several times as
long to make.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from coordinator.core.contract import BreakerState, Token
from coordinator.core.request import Request
from coordinator.core.workers.worker import Departure, Worker
from transport.wire.messages import ToWorker

NOT_FAULTS = frozenset({"preempted", "draining"})
"""Codes of retries that are no fault of a worker or a request."""


class Send(Struct, frozen=True):
    """Send a message to a worker."""

    instance: str
    message: ToWorker


class Emit(Struct, frozen=True):
    """Stream a token to the request's client."""

    request: Request
    token: Token


class Recorded(Struct, frozen=True):
    """A request changed: write its record to Redis."""

    request: Request


class HandedOff(Struct, frozen=True):
    """The first token arrived that the request's decode worker computed; once per handoff."""

    request: Request


class Retried(Struct, frozen=True):
    """An attempt failed, and the request is queued for the next one."""

    request: Request
    code: str
    message: str
    """Why the attempt failed."""


class Charged(Struct, frozen=True):
    """A request's fault counts against a worker."""

    worker: Worker
    code: str


class BreakerMoved(Struct, frozen=True):
    """A worker's circuit breaker changed its state."""

    worker: Worker
    state: BreakerState
    why: str
    """For people."""


class Ended(Struct, frozen=True):
    """The request reached its terminal state; once per request."""

    request: Request


class WorkerJoined(Struct, frozen=True):
    """A worker was admitted."""

    worker: Worker


class WorkerLeft(Struct, frozen=True):
    """A worker was removed, and its requests were retried or failed."""

    worker: Worker
    departure: Departure


AboutRequest = Emit | Recorded | HandedOff | Retried | Ended
AboutWorker = Charged | BreakerMoved | WorkerJoined | WorkerLeft
Effect = Send | AboutRequest | AboutWorker


class Outbox:
    """Gives each effect of an event to ``carry_out`` when the event is over.

    Every event is a ``with`` block, so no effect waits for a later event. Orders to workers are
    carried out first, because a GPU may be idle until its order arrives and the other effects take
    time; ``send_orders`` lets them go while the event continues. An event that begins inside
    another one, or while effects are carried out, adds to what is carried out next.
    """

    def __init__(self, carry_out: Callable[[Effect], None]) -> None:
        self._carry_out = carry_out
        self._depth = 0
        self._orders: list[Send] = []
        self._others: list[Effect] = []

    def send(self, instance: str, message: ToWorker) -> None:
        """Add an order to a worker."""
        assert self._depth, "an order outside an event"
        self._orders.append(Send(instance, message))

    def send_all(self, orders: Iterable[tuple[str, ToWorker]]) -> None:
        """Add orders, each with the worker that it is for."""
        for instance, message in orders:
            self.send(instance, message)

    def send_orders(self) -> None:
        """Carry out the orders so far, before a part of the event that takes long. Inside another
        event they wait for its end."""
        while self._depth == 1 and self._orders:
            self._carry_out(self._orders.pop(0))

    def add(self, *effects: Effect) -> None:
        assert self._depth, "an effect outside an event"
        self._others.extend(effects)

    def record(self, request: Request) -> None:
        """Add the new revision of a request that has changed."""
        request.revision += 1
        self.add(Recorded(request))

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        try:
            while self._depth == 1 and (effects := [*self._orders, *self._others]):
                self._orders, self._others = [], []
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self._depth -= 1
