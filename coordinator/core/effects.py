"""What follows from an event in the lifecycle: plain values, carried out when the event is over.

They are msgspec's structs, since one is made for each token: a frozen dataclass takes several times
as long to make."""

from collections.abc import Callable

from msgspec import Struct

from coordinator.core.contract import BreakerState, Token
from coordinator.core.request import Request
from coordinator.core.workers.worker import Worker
from transport.wire.messages import ToWorker


class Send(Struct, frozen=True):
    """Give a worker a message."""

    instance: str
    message: ToWorker


class Emit(Struct, frozen=True):
    """Stream a token to the request's client."""

    request: Request
    token: Token


class Recorded(Struct, frozen=True):
    """The request changed: its record in Redis follows."""

    request: Request


class HandedOff(Struct, frozen=True):
    """The first token that the request's decode worker computed is here; once for each handoff."""

    request: Request


class PlacedAnew(Struct, frozen=True):
    """An attempt failed, and the request waits for another; ``code`` and ``message`` say why."""

    request: Request
    code: str
    message: str


class Charged(Struct, frozen=True):
    """A request's fault counts against the worker."""

    worker: Worker
    code: str


class BreakerMoved(Struct, frozen=True):
    """The worker's circuit breaker is in another state now; ``why`` is for people."""

    worker: Worker
    state: BreakerState
    why: str


class Ended(Struct, frozen=True):
    """The request reached its terminal state; emitted once."""

    request: Request


Effect = Send | Emit | Recorded | HandedOff | PlacedAnew | Charged | BreakerMoved | Ended


class Outbox:
    """Collects the effects of an event and gives each to ``carry_out`` when the event is over.

    Every event is a ``with`` block, so that no effect waits for a later event. Orders to workers go
    first: a GPU may be idle until its order comes, and the rest takes its time; ``send_orders``
    lets them go while the event goes on. An event that begins inside another one, or while effects
    are carried out, adds to what is carried out next.
    """

    def __init__(self, carry_out: Callable[[Effect], None]) -> None:
        self._carry_out = carry_out
        self._depth = 0
        self._orders: list[Send] = []
        self._others: list[Effect] = []

    def send(self, instance: str, message: ToWorker) -> None:
        assert self._depth, "an order outside an event"
        self._orders.append(Send(instance, message))

    def send_orders(self) -> None:
        """Carry out the orders so far: what the event has yet to decide takes long. Inside another
        event they wait for its end."""
        while self._depth == 1 and self._orders:
            self._carry_out(self._orders.pop(0))

    def add(self, effect: Effect) -> None:
        assert self._depth, "an effect outside an event"
        self._others.append(effect)

    def record(self, request: Request) -> None:
        """The request has changed."""
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
