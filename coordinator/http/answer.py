"""Makes the body or the events of a response, whichever API it belongs to.

A ``Writer`` makes the JSON of a chat or a completion, whole or in chunks; a ``ChunkedAnswer`` sends
it. The other APIs have an ``Answer`` of their own (responses/answer.py, messages/answer.py).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from coordinator.http.choice import Delta
from coordinator.http.errors import ApiError
from coordinator.http.logprobs import completion_logprobs
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.http.response_schemas import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionTokensDetails,
    Usage,
)
from coordinator.text.thoughts import ThoughtIds, ThoughtMeter
from transport.wire.token_ids import TokenIds

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """One response. Call either ``events`` for each delta and then ``end`` or ``failure``, which
    return the bytes of server-sent events; or ``body`` alone."""

    def events(self, index: int, delta: Delta) -> bytes:
        """Events of one delta; b"" if there is nothing to send yet."""
        ...

    async def end(self) -> bytes: ...

    def failure(self, error: ApiError) -> bytes:
        """Events that end a stream which has begun and fails."""
        ...

    async def body(self, choices: Sequence[Delta]) -> Struct: ...


def sse(data: Any, name: str = "") -> bytes:
    """Encode one server-sent event."""
    head = b"event: %b\n" % name.encode() if name else b""
    return b"%bdata: %b\n\n" % (head, _encode(data))


class Writer(Protocol):
    """Makes the bodies of one response, whole or in chunks."""

    def chunk(self, index: int, delta: Delta, usage: Usage | UnsetType | None) -> Struct | None:
        """The chunk of a delta; None if there is nothing to send yet."""
        ...

    def last_chunk(self, usage: Usage) -> Struct:
        """The chunk that has only the usage."""
        ...

    def body(self, choices: Sequence[Delta], usage: Usage) -> Struct: ...


@dataclass
class Head:
    """The fields that all bodies of a response share. ``prompt_ids``: ids of each prompt if the
    request asks for token ids. ``fingerprint``: see AppContext."""

    response_id: str
    model: str
    logprobs: bool
    prompt_ids: Sequence[TokenIds] | None
    fingerprint: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def token_ids(self, delta: Delta) -> list[int] | UnsetType:
        return UNSET if self.prompt_ids is None else [token.token_id for token in delta.tokens]

    def prompt(self, number: int, *, wanted: bool) -> list[int] | UnsetType:
        return UNSET if self.prompt_ids is None or not wanted else self.prompt_ids[number].tolist()


class ChunkedAnswer:
    """A chat or a completion as events: one chunk per delta, at the end the usage if the request
    asks for it, and ``[DONE]``. ``thought``: the tokens around the thoughts of a chat; None
    if it has none."""

    def __init__(
        self,
        writer: Writer,
        request: GenerationRequest,
        prompt_tokens: int,
        thought: ThoughtIds | None = None,
    ) -> None:
        options = request.stream_options
        self._writer = writer
        self._prompt_tokens = prompt_tokens
        self._cached = CachedTokens(request.n or 1)
        self._output_tokens = 0
        self._ends_with_usage = bool(options and options.include_usage)
        self._usage_always = bool(
            options and options.continuous_usage_stats and options.include_usage is not False
        )
        self._counts_thoughts = isinstance(request, ChatRequest)
        self._thoughts = ThoughtTokens(thought)

    def events(self, index: int, delta: Delta) -> bytes:
        self._count(index, delta)
        usage: Usage | UnsetType | None = None if self._ends_with_usage else UNSET
        if self._usage_always:
            usage = self._usage()
        chunk = self._writer.chunk(index, delta, usage)
        return b"" if chunk is None else sse(chunk)

    async def end(self) -> bytes:
        last = sse(self._writer.last_chunk(self._usage())) if self._ends_with_usage else b""
        return last + _DONE

    def failure(self, error: ApiError) -> bytes:
        return sse(error.body()) + _DONE

    async def body(self, choices: Sequence[Delta]) -> Struct:
        for index, choice in enumerate(choices):
            self._count(index, choice)
        return self._writer.body(choices, self._usage())

    def _count(self, index: int, delta: Delta) -> None:
        self._output_tokens += len(delta.tokens)
        self._cached.add(index, delta)
        self._thoughts.add(index, delta)

    def _usage(self) -> Usage:
        usage = Usage.of(self._prompt_tokens, self._output_tokens, self._cached.total)
        if self._counts_thoughts:
            details = CompletionTokensDetails(reasoning_tokens=self._thoughts.total)
            usage.completion_tokens_details = details
        return usage


class CompletionWriter:
    """Writes a completion. Choice ``i`` belongs to prompt ``i // n``. ``echoes``: the text of each
    prompt, if requested."""

    def __init__(self, head: Head, *, n: int, echoes: Sequence[str] | None) -> None:
        self._head = head
        self._n = n
        self._echoes = echoes
        self._started: set[int] = set()

    def chunk(self, index: int, delta: Delta, usage: Usage | UnsetType | None) -> Struct:
        first = index not in self._started
        self._started.add(index)
        return self._completion([self._choice(index, delta, first=first)], usage)

    def last_chunk(self, usage: Usage) -> Struct:
        return self._completion([], usage)

    def body(self, choices: Sequence[Delta], usage: Usage) -> Struct:
        whole = [self._choice(index, choice, first=True) for index, choice in enumerate(choices)]
        return self._completion(whole, usage)

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        head = self._head
        return Completion(
            id=head.response_id, created=head.created, model=head.model,
            system_fingerprint=head.fingerprint, choices=choices, usage=usage,
        )  # fmt: skip

    def _choice(self, index: int, delta: Delta, *, first: bool) -> CompletionChoice:
        head, prompt = self._head, index // self._n
        echo = self._echoes[prompt] if first and self._echoes is not None else ""
        return CompletionChoice(
            index=index,
            text=echo + delta.text,
            logprobs=self._logprobs(prompt, delta) if head.logprobs else None,
            finish_reason=delta.finish,
            stop_reason=delta.stop_reason if delta.finish else UNSET,
            matched_stop=delta.matched_stop if delta.finish else UNSET,
            token_ids=head.token_ids(delta),
            prompt_token_ids=head.prompt(prompt, wanted=first),
            prompt_logprobs=delta.prompt_logprobs,
        )

    def _logprobs(self, prompt: int, delta: Delta) -> CompletionLogprobs:
        echo_len = len(self._echoes[prompt]) if self._echoes is not None else 0
        output = completion_logprobs(delta.scores, [echo_len + at for at in delta.offsets])
        return output if delta.prompt is None else delta.prompt.before(output)


class ThoughtTokens:
    """Counts the tokens of the thoughts of all choices, those around each one included."""

    def __init__(self, thought: ThoughtIds | None) -> None:
        self._thought = thought
        self._meters: dict[int, ThoughtMeter] = {}
        self.total = 0

    def add(self, index: int, delta: Delta) -> None:
        if self._thought is not None:
            meter = self._meters.setdefault(index, ThoughtMeter(self._thought))
            self.total += sum(meter.has(token.token_id) for token in delta.tokens)


class CachedTokens:
    """Counts prompt tokens that came from the prefix cache, for the choices that have begun.

    Each prompt counts once, with the choice that reused the fewest of its tokens. The others may
    have reused what that choice computed, and no earlier request had that.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._of_choice: dict[int, int] = {}

    def add(self, index: int, delta: Delta) -> None:
        self._of_choice.setdefault(index, delta.num_reused)  # only the first delta counts

    @property
    def total(self) -> int:
        fewest: dict[int, int] = {}
        for index, num_reused in self._of_choice.items():
            prompt = index // self._n
            fewest[prompt] = min(num_reused, fewest.get(prompt, num_reused))
        return sum(fewest.values())
