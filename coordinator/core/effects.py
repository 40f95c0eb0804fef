"""Effects: what follows from an event, as plain values.

requests/lifecycle.py decides them, and effect_runner.py carries them out when the event is over.
They are msgspec structs because one is made for each token, and a frozen dataclass takes several
times as long to make.
"""

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
