"""What the lifecycle wants done: plain values, carried out in the order they come."""

from dataclasses import dataclass

from coordinator.core.contract import BreakerState, Token
from coordinator.core.registry import Worker
from coordinator.core.request import Request
from transport.wire.messages import ToWorker


@dataclass(frozen=True)
class Send:
    """Give a worker a message."""

    instance: str
    message: ToWorker


@dataclass(frozen=True)
class Emit:
    """Stream a token to the request's client."""

    request: Request
    token: Token


@dataclass(frozen=True)
class Recorded:
    """The request changed: its record in Redis follows."""

    request: Request


@dataclass(frozen=True)
class HandedOff:
    """The first token that the request's decode worker computed is here; once for each handoff."""

    request: Request


@dataclass(frozen=True)
class PlacedAnew:
    """An attempt came to nothing, and the request waits for another; ``code`` and ``message`` say
    why."""

    request: Request
    code: str
    message: str


@dataclass(frozen=True)
class Charged:
    """A request's fault counts against the worker."""

    worker: Worker
    code: str


@dataclass(frozen=True)
class BreakerMoved:
    """The worker's circuit breaker is in another state now; ``why`` is for people."""

    worker: Worker
    state: BreakerState
    why: str


@dataclass(frozen=True)
class Ended:
    """The request reached its terminal state; emitted once."""

    request: Request


Effect = Send | Emit | Recorded | HandedOff | PlacedAnew | Charged | BreakerMoved | Ended
