"""Carries out the effects of the lifecycle's events: send, stream, record, end.

A token goes to the ``Stream`` of its request, from which the HTTP edge reads it.

A bug in carrying out one effect must not end every other stream. If a token may have been lost, it
ends the request that the token belongs to.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import assert_never

from coordinator.core.contract import GenerationFailed, Token
from coordinator.core.effects import (
    AboutWorker,
    BreakerMoved,
    Charged,
    Effect,
    Emit,
    Ended,
    HandedOff,
    Recorded,
    Retried,
    Send,
    WorkerJoined,
    WorkerLeft,
)
from coordinator.core.observer import Observer
from coordinator.core.open_tokens import Hold
from coordinator.core.request import Request, State
from transport.wire.messages import ToWorker

log = logging.getLogger(__name__)


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
    """Holds the stream of every open request. ``send`` gives a message to a worker; ``fail`` ends a
    request with an internal error; ``idle`` is set while no stream is open."""

    def __init__(
        self,
        observer: Observer,
        send: Callable[[str, ToWorker], bool],
        fail: Callable[[Request], None],
    ) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._observer = observer
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
            case Emit(request=request, token=token):
                self._streams[request.request_id].push(token)
                self._observer.token(request)
            case Recorded(request=request):
                self._observer.record(request)
            case HandedOff(request=request):
                self._observer.handed_off(request)
            case Retried(request=request, code=code, message=why):
                self._observer.retried(request, code, why)
            case Charged(worker=worker, code=code):
                self._observer.charged(worker, code)
            case BreakerMoved(worker=worker, state=state, why=why):
                self._observer.breaker_moved(worker, state, why)
            case Ended(request=request):
                self._close_stream(request)
                self._observer.ended(request)
            case WorkerJoined(worker=worker):
                self._observer.worker_joined(worker)
            case WorkerLeft(worker=worker, departure=departure):
                self._observer.worker_left(worker, departure)
            case _:
                assert_never(effect)

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
