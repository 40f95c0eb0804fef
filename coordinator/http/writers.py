"""From the choices of a completion to its bodies, and what all writers of responses share."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from coordinator.core.contract import Token
from coordinator.http.choice import Delta
from coordinator.http.response_schemas import (
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from coordinator.http.token_names import finite, name_by_id, token_name
from transport.wire.token_ids import TokenIds


class Writer(Protocol):
    """Makes the bodies of one response, whole or in chunks."""

    def chunk(self, index: int, delta: Delta, usage: Usage | UnsetType | None) -> Struct | None:
        """None where there is nothing to send yet."""
        ...

    def last_chunk(self, usage: Usage) -> Struct:
        """The chunk that only tells the usage."""
        ...

    def body(self, choices: Sequence[Delta], usage: Usage) -> Struct: ...


@dataclass
class Head:
    """What every body of a response says. ``prompt_ids`` has the ids of each prompt where the
    request asks for token ids; ``names_are_ids``: log-probabilities name a token ``token_id:5``."""

    response_id: str
    model: str
    token_bytes: Mapping[int, bytes]
    logprobs: bool
    prompt_ids: Sequence[TokenIds] | None
    names_are_ids: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def logprobs_of_chat(self, delta: Delta) -> ChatLogprobs | None:
        if not self.logprobs:
            return None
        return chat_logprobs(delta.tokens, self.token_bytes, names_are_ids=self.names_are_ids)

    def token_ids(self, delta: Delta) -> list[int] | UnsetType:
        return UNSET if self.prompt_ids is None else [token.token_id for token in delta.tokens]

    def prompt(self, number: int, *, wanted: bool) -> list[int] | UnsetType:
        return UNSET if self.prompt_ids is None or not wanted else self.prompt_ids[number].tolist()


class CompletionWriter:
    """Choice ``i`` belongs to prompt ``i // n``. ``echoes`` has the text of each prompt where it is
    asked for."""

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
            id=head.response_id, created=head.created, model=head.model, choices=choices,
            usage=usage,
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
            token_ids=head.token_ids(delta),
            prompt_token_ids=head.prompt(prompt, wanted=first),
            prompt_logprobs=delta.prompt_logprobs,
        )

    def _logprobs(self, prompt: int, delta: Delta) -> CompletionLogprobs:
        head, echo_len = self._head, len(self._echoes[prompt]) if self._echoes is not None else 0
        offsets = [echo_len + offset for offset in delta.offsets]
        output = completion_logprobs(
            delta.tokens, offsets, head.token_bytes, names_are_ids=head.names_are_ids
        )
        return output if delta.prompt is None else delta.prompt.before(output)


def chat_logprobs(
    tokens: Sequence[Token], token_bytes: Mapping[int, bytes], *, names_are_ids: bool = False
) -> ChatLogprobs:
    """Each token's logprob, and those of the most probable tokens in its place."""

    def top(token_id: int, logprob: float) -> TopLogprob:
        raw = token_bytes[token_id]
        text = name_by_id(token_id) if names_are_ids else raw.decode("utf-8", "replace")
        return TopLogprob(token=text, logprob=finite(logprob), bytes=list(raw))

    content = []
    for token in tokens:
        if token.logprobs is not None:
            chosen = top(token.token_id, token.logprobs.chosen)
            content.append(
                TokenLogprob(
                    token=chosen.token, logprob=chosen.logprob, bytes=chosen.bytes,
                    top_logprobs=[top(*pair) for pair in token.logprobs.top],
                )
            )  # fmt: skip
    return ChatLogprobs(content=content)


def completion_logprobs(
    tokens: Sequence[Token],
    offsets: Sequence[int],
    token_bytes: Mapping[int, bytes],
    *,
    names_are_ids: bool = False,
) -> CompletionLogprobs:
    """Parallel lists; ``top_logprobs`` always holds the sampled token too."""

    def name_of(token_id: int) -> str:
        return token_name(token_id, token_bytes, by_id=names_are_ids)

    scored = [(t, t.logprobs, o) for t, o in zip(tokens, offsets, strict=True) if t.logprobs]
    names = [name_of(token.token_id) for token, _, _ in scored]
    return CompletionLogprobs(
        tokens=names,
        token_logprobs=[finite(logprobs.chosen) for _, logprobs, _ in scored],
        top_logprobs=[
            {name_of(token_id): finite(value) for token_id, value in logprobs.top}
            | {name: finite(logprobs.chosen)}
            for name, (_, logprobs, _) in zip(names, scored, strict=True)
        ],
        text_offset=[offset for _, _, offset in scored],
    )
