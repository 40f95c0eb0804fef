"""Effects: what follows from an event, as plain values; the outbox that collects them, and the
runner that carries them out.

requests/ decides them, and fills the outbox. When the event is over, the runner sends orders and
fills streams, and observer.py reports the rest. Effects are msgspec structs because one is made for
each token, and a frozen dataclass takes several times as long to make.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from coordinator.core.contract import BreakerState, GenerationFailed, Token
from coordinator.core.open_tokens import Hold
from coordinator.core.request import Request, State
from coordinator.core.workers.worker import Departure, Worker
from transport.wire.messages import ToWorker

log = logging.getLogger(__name__)

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


class Moved(Struct, frozen=True):
    """A request that was to move for ``reason`` is decoded again, ``seconds`` after the order:
    elsewhere, or where it was if it ``stayed``."""

    request: Request
    reason: str
    stayed: bool
    seconds: float


class Crossed(Struct, frozen=True):
    """A decode worker got the request's prompt to compute, or a prefill worker its sequence to
    decode."""

    request: Request
    what: Literal["prompt", "sequence"]


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


AboutRequest = Emit | Recorded | HandedOff | Moved | Crossed | Retried | Ended
AboutWorker = Charged | BreakerMoved | WorkerJoined | WorkerLeft
Reported = AboutRequest | AboutWorker
Effect = Send | Reported


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


class Stream:
    """A ``TokenStream`` (contract.py), filled by the hub and read by the HTTP edge.

    At most ``max_tokens`` entries wait in it. ``hold`` counts them until ``cancel``, which the edge
    calls when the response is over, however it ended.
    """

    def __init__(
        self, hold: Hold, stop_early: Callable[[], None], cancel: Callable[[], None]
    ) -> None:
        self._hold = hold
        self._tokens: deque[Token] = deque()
        self._woken = asyncio.Event()
        self._ended = False
        self._failure: GenerationFailed | None = None
        self._stop_early = stop_early
        self._cancel = cancel

    def push(self, token: Token) -> None:
        self._tokens.append(token)
        self._hold.add(token)
        self._woken.set()

    def end(self, failure: GenerationFailed | None = None) -> None:
        self._ended = True
        self._failure = failure
        self._woken.set()

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Token:
        while not self._tokens:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            self._woken.clear()
            await self._woken.wait()
        token = self._tokens.popleft()
        self._hold.remove(token)
        return token

    def stop_early(self) -> None:
        self._stop_early()

    def cancel(self) -> None:
        self._hold.release()
        self._cancel()


class EffectRunner:
    """Carries out effects: orders by ``send``, tokens and ends by the stream of their request. All
    but orders are also reported by ``report``.

    A bug in carrying out one effect must not end every other stream. If a token may have been lost,
    ``fail`` ends the request that the token belongs to. ``idle`` is set while no stream is open.
    """

    def __init__(
        self,
        report: Callable[[Reported], None],
        send: Callable[[str, ToWorker], bool],
        fail: Callable[[Request], None],
    ) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._report = report
        self._send = send
        self._fail = fail
        self._streams: dict[str, Stream] = {}

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    def open(self, request_id: str, stream: Stream) -> None:
        """Let the request's tokens and its end go to ``stream``."""
        self._streams[request_id] = stream
        self.idle.clear()

    def carry_out(self, effect: Effect) -> None:
        """Carry out one effect. Does not raise."""
        try:
            self._carry_out(effect)
        except Exception:
            self._give_up(effect)

    def _carry_out(self, effect: Effect) -> None:
        # Streams come first: the client has its token and its end even if reporting them fails.
        match effect:
            case Send(instance=instance, message=message):
                # The next heartbeats find a worker that cannot be reached.
                self._send(instance, message)
                return
            case Emit(request=request, token=token):
                self._streams[request.request_id].push(token)
            case Ended(request=request):
                self._close_stream(request)
        self._report(effect)

    def _give_up(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            # The worker's next heartbeats show that it did not get the message.
            log.exception("sending %s to %s", type(effect.message).__name__, effect.instance)
            return
        if isinstance(effect, AboutWorker):
            instance = effect.worker.instance
            log.exception("carrying out %s of %s", type(effect).__name__, instance)
            return
        fields = effect.request.log_fields
        log.exception("carrying out %s", type(effect).__name__, extra=fields)
        if isinstance(effect, Emit):  # the other effects only report
            self._fail(effect.request)

    def _close_stream(self, request: Request) -> None:
        failed = request.state is State.FAILED
        failure = GenerationFailed(request.code, request.message) if failed else None
        self._streams.pop(request.request_id).end(failure)
        if not self._streams:
            self.idle.set()
