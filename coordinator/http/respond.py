"""Submits the SequenceRequests of a request, then streams or collects its answer."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.core.contract import GenerationFailed, SequenceRequest, TokenStream
from coordinator.http.answer import Answer
from coordinator.http.app_context import AppContext
from coordinator.http.auth.accounts import account_of
from coordinator.http.choice import Choice, Delta, choices_of, collected, merged
from coordinator.http.errors import ApiError, from_core, internal_error, json_response
from coordinator.http.middleware import note_accepted
from coordinator.http.request_schemas import GenerationRequest
from coordinator.http.while_connected import ClientDisconnected, while_connected

log = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def respond(
    context: AppContext,
    http: Request,
    request: GenerationRequest,
    specs: Sequence[SequenceRequest],
    answer: Answer,
) -> Response:
    """Submit ``specs``, then stream or collect the answer. Raises Overloaded if one of ``specs`` is
    not accepted, ApiError if the key has no tokens left, GenerationFailed and ClientDisconnected.
    In each case all choices are cancelled."""
    choices = submit_choices(context, http, request, specs)
    request_ids = [spec.request_id for spec in specs]
    if request.stream:
        recorded = partial(context.core.recorded, request_ids)
        return EventStream(choices, answer, recorded, partial(context.core.cut, request_ids))
    whole = while_connected(collected(choices), http.receive)
    return json_response(await finish_answer(context, choices, request_ids, whole, answer))


def submit_choices(
    context: AppContext, http: Request, request: GenerationRequest, specs: Sequence[SequenceRequest]
) -> list[Choice]:
    """Submit ``specs``, and charge them to the request's key. Raises Overloaded and ApiError as
    ``respond`` does."""
    account = account_of(http.scope)
    account.check_tokens()
    streams = _submit(context, specs)
    note_accepted(http.scope)
    context.metrics.per_request.n.observe(request.n or 1)
    account.charge(sum(len(spec.prompt_ids) for spec in specs[:: request.n or 1]))
    if request.num_output_asked != 0:
        streams = [account.metered(stream) for stream in streams]
    return choices_of(request, specs, streams, context.tokenizer)


async def finish_answer(
    context: AppContext,
    choices: Sequence[Choice],
    request_ids: Sequence[str],
    whole: Awaitable[list[Delta]],
    answer: Answer,
) -> Any:
    """The body of an answer once ``whole``, the collected choices, is there and the end of its
    requests is recorded. Cancels the choices if that fails or is cancelled."""
    try:
        outputs = await whole
    except GenerationFailed:
        cancel_all(choices)
        await context.core.recorded(request_ids)
        raise
    finally:
        cancel_all(choices)
    body = await answer.body(outputs)
    await context.core.recorded(request_ids)
    return body


class EventStream(Response):
    """A streamed response. Its life:

    1. Nothing is sent before the first delta, so an early failure still gets its own status.
    2. Each delta is sent as its events; a failure from here on is an event too.
    3. The answer's last event always ends it, unless the client has disconnected; ``recorded``
       comes before. If it is not sent, ``cut`` is called.
    4. However it ends, all choices that have not ended are cancelled.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        answer: Answer,
        recorded: Callable[[], Awaitable[None]],
        cut: Callable[[], None],
    ) -> None:
        self._choices = choices
        self._answer = answer
        self._recorded = recorded
        self._cut = cut
        self._sent = False
        self._started = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(self._deliver(scope, receive, send), receive)
        except ClientDisconnected as left:
            log.debug("stream abandoned", extra={"reason": str(left)})
        finally:
            self._cancel()
            if not self._sent:
                self._cut()

    def _cancel(self) -> None:
        cancel_all(self._choices)

    async def _deliver(self, scope: Scope, receive: Receive, send: Any) -> None:
        try:
            await self._send_deltas(send)
            last = await self._answer.end()
        except Exception as error:
            failed = _failed(error)
            self._cancel()
            if not self._started:
                await self._recorded()
                await failed.response()(scope, receive, send)
                self._sent = True
                return
            last = self._answer.failure(failed)
        await self._recorded()
        await send({"type": "http.response.body", "body": last})
        self._sent = True

    async def _send_deltas(self, send: Any) -> None:
        async for index, delta in merged(self._choices):
            if not (events := self._answer.events(index, delta)):
                continue
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": events, "more_body": True})


def _submit(context: AppContext, specs: Sequence[SequenceRequest]) -> list[TokenStream]:
    streams: list[TokenStream] = []
    try:
        for spec in specs:
            streams.append(context.core.submit(spec))  # noqa: PERF401, kept for the except
    except BaseException:
        _cancel(streams)
        raise
    fields = {
        "request_id": specs[0].request_id,
        "choices": len(specs),
        "prompt_len": len(specs[0].prompt_ids),
    }
    log.debug("accepted", extra=fields)
    return streams


def _cancel(streams: Sequence[TokenStream]) -> None:
    for stream in streams:
        stream.cancel()


def cancel_all(choices: Sequence[Choice]) -> None:
    """Cancel the choices that have not ended."""
    _cancel([choice.stream for choice in choices])


def _failed(error: Exception) -> ApiError:
    if isinstance(error, GenerationFailed):
        log.debug("generation failed", extra={"code": error.code, "why": str(error)})
        return from_core(error)
    log.error("error while streaming", exc_info=error)
    return internal_error()
