"""Makes the bodies of a completion from its choices; and the parts that all writers of bodies
share."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from coordinator.http.choice import Delta
from coordinator.http.logprobs import completion_logprobs
from coordinator.http.response_schemas import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Usage,
)
from transport.wire.token_ids import TokenIds


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
