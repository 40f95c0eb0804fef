"""From the deltas of an answer to a response of the Responses API, whole or as events."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct, structs

from coordinator.http.answer import sse
from coordinator.http.choice import Delta
from coordinator.http.errors import ApiError
from coordinator.http.responses.events import (
    Event,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    StreamError,
)
from coordinator.http.responses.output import Output
from coordinator.http.responses.schemas import (
    ErrorCode,
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    ResponseBody,
    ResponseError,
    ResponseUsage,
)
from coordinator.text.thoughts import ThoughtIds, ThoughtMeter

_PUSHED_PER_TURN = 100
"""Tokens with log-probabilities that are processed in one turn of the loop, in about 1 ms."""
Store = Callable[[ResponseBody], Awaitable[bool]]


class ResponseAnswer:
    """The Answer (coordinator/http/answer.py) of one response. ``body``: the response in progress.
    ``thought``: the tokens around the thought; None without one. ``store`` keeps the response, and
    returns whether it could."""

    def __init__(
        self,
        body: ResponseBody,
        output: Output,
        prompt_tokens: int,
        thought: ThoughtIds | None,
        store: Store,
    ) -> None:
        self._body = body
        self._output = output
        self._prompt_tokens = prompt_tokens
        self._thought = ThoughtMeter(thought)
        self._store = store
        self._num_tokens = self._num_thought = self._num_cached = self._num_events = 0
        self._cut_off = False

    def events(self, index: int, delta: Delta) -> bytes:
        events: list[Event] = []
        if self._num_events == 0:
            events += [
                ResponseCreated(response=self._body),
                ResponseInProgress(response=self._body),
            ]
        return self._sent([*events, *self._push(delta)])

    async def end(self) -> bytes:
        body = await self._whole()
        ended = ResponseIncomplete if self._cut_off else ResponseCompleted
        return self._sent([ended(response=body)])

    def failure(self, error: ApiError) -> bytes:
        failed = StreamError(code=error.code, message=str(error), param=error.param)
        events = [*self._output.end("incomplete"), failed]
        body = structs.replace(
            self._body,
            status="failed",
            error=response_error(error),
            output=self._output.items,
            store=False,
        )
        return self._sent([*events, ResponseFailed(response=body)])

    async def body(self, choices: Sequence[Delta]) -> Struct:
        (whole,) = choices
        for number, delta in enumerate(_by_token(whole) if whole.scores else [whole], start=1):
            self._push(delta)
            if number % _PUSHED_PER_TURN == 0:
                await asyncio.sleep(0)
        return await self._whole()

    def _push(self, delta: Delta) -> list[Event]:
        self._num_cached += delta.num_reused
        logprobs = self._counted(delta)
        ended = delta.finish is not None
        events = self._output.push(delta.text, logprobs, last=ended)
        if ended:
            self._cut_off = delta.finish == "length"
            events += self._output.end("incomplete" if self._cut_off else "completed")
        return events

    def _counted(self, delta: Delta) -> list[Any]:
        """Count the tokens, and return the log-probabilities of those after the thought."""
        told = []
        for token, score in zip_longest(delta.tokens, delta.scores):
            self._num_tokens += 1
            if self._thought.has(token.token_id):
                self._num_thought += 1
            elif score is not None and token.finish != "stop":  # a stop token has no text
                told.append(score)
        return told

    async def _whole(self) -> ResponseBody:
        """The body at the end, once the response is stored."""
        body = structs.replace(
            self._body,
            completed_at=None if self._cut_off else int(time.time()),
            status="incomplete" if self._cut_off else "completed",
            incomplete_details=IncompleteDetails(reason="max_output_tokens")
            if self._cut_off
            else None,
            output=self._output.items,
            usage=self._usage(),
        )
        body.store = body.store and await self._store(body)
        return body

    def _usage(self) -> ResponseUsage:
        return ResponseUsage(
            input_tokens=self._prompt_tokens,
            input_tokens_details=InputDetails(cached_tokens=self._num_cached),
            output_tokens=self._num_tokens,
            output_tokens_details=OutputDetails(reasoning_tokens=self._num_thought),
            total_tokens=self._prompt_tokens + self._num_tokens,
        )

    def _sent(self, events: Sequence[Event]) -> bytes:
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
        return b"".join(sse(event, str(event.__struct_config__.tag)) for event in events)


def response_error(error: ApiError) -> ResponseError:
    """The error of a response that failed."""
    code: ErrorCode = "server_error" if error.status >= 500 else "invalid_prompt"
    if error.status == 429:
        code = "rate_limit_exceeded"
    return ResponseError(code=code, message=str(error), type=error.code)


def _by_token(whole: Delta) -> list[Delta]:
    """A whole answer as one delta per token, so that each log-probability is returned with its
    text."""
    ends = [*whole.offsets[1:], len(whole.text)]
    deltas = [
        Delta(whole.text[begin:end], [token], [begin], scores=[score])
        for token, begin, end, score in zip(
            whole.tokens, whole.offsets, ends, whole.scores, strict=True
        )
    ]
    if deltas:
        deltas[-1].finish = whole.finish
        deltas[0].num_reused = whole.num_reused
    return deltas
