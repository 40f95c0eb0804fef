"""Log-probabilities of a prompt: their limit, and their JSON.

The JSON of 131,072 tokens takes tens of megabytes. Making it at once would block every stream for a
second. So each turn of the loop makes a part, which stays bytes that msgspec copies into the
answer.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from coordinator.core.contract import SequenceRequest
from coordinator.http.errors import invalid
from coordinator.http.logprobs import finite, token_name
from coordinator.http.request_schemas import GenerationRequest
from coordinator.http.response_schemas import CompletionLogprobs, PromptLogprob, PromptLogprobs
from coordinator.text.detokenizer import Detokenizer
from transport.wire.prompt_logprobs import TokenScore, read_rows
from transport.wire.token_ids import TokenIds

WRITTEN_PER_TURN = 500
"""Log-probabilities that are written in one turn of the loop, in about 1 ms."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class PromptJson:
    """JSON of the log-probabilities of one prompt. ``echoed``: the items of each list of
    CompletionLogprobs; empty unless they are requested. ``prompt_logprobs``: vLLM's field."""

    echoed: Mapping[str, bytes]
    prompt_logprobs: PromptLogprobs

    def before(self, output: CompletionLogprobs) -> CompletionLogprobs:
        """The log-probabilities of the prompt, followed by those of the output."""
        if not self.echoed:
            return output
        joined = {
            name: _list([items, _items(getattr(output, name))])
            for name, items in self.echoed.items()
        }
        return CompletionLogprobs(**joined)


class PromptLogprobsWriter:
    """Writes the log-probabilities of one prompt as JSON, from its rows
    (transport/wire/prompt_logprobs.py) with ``num_top`` alternatives. ``num_echoed`` alternatives
    go into the lists of CompletionLogprobs, ``num_own`` into ``prompt_logprobs``; None: no such
    field."""

    def __init__(
        self,
        prompt_ids: TokenIds,
        token_bytes: Mapping[int, bytes],
        *,
        num_echoed: int | None,
        num_own: int | None,
        names_are_ids: bool = False,
    ) -> None:
        self._ids = prompt_ids
        self._token_bytes = token_bytes
        self._num_echoed = num_echoed
        self._num_own = num_own
        self._names_are_ids = names_are_ids
        self._detokenizer = Detokenizer(token_bytes, frozenset())
        self._text_len = 0

    async def read(self, pieces: Sequence[bytes]) -> PromptJson:
        """Write the JSON of all rows. ``pieces``: rows of all tokens but the first, in order.
        Called once."""
        num_top = max(self._num_echoed or 0, self._num_own or 0)
        scores = chain.from_iterable(read_rows(piece, num_top) for piece in pieces)
        tokens = chain([(self._ids[0], None)], zip(self._ids[1:], scores, strict=True))
        echoed: dict[str, list[bytes]] = defaultdict(list)
        own = []
        while some := list(islice(tokens, max(1, WRITTEN_PER_TURN // (num_top + 1)))):
            if self._num_echoed is not None:
                for name, values in self._echoed(some, self._num_echoed).items():
                    echoed[name].append(_items(values))
            if self._num_own is not None:
                own.append(_items([self._own(*token, self._num_own) for token in some]))
            await asyncio.sleep(0)
        joined = {name: b",".join(items) for name, items in echoed.items()}
        return PromptJson(joined, _list(own) if own else UNSET)

    def _echoed(
        self, tokens: Sequence[tuple[int, TokenScore | None]], num_top: int
    ) -> dict[str, list[Any]]:
        """The lists of the prompt, as ``completion_logprobs`` has them for the output."""
        lists = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, score in tokens:
            name, logprob, top = self._name(token_id), None, None
            if score is not None:
                logprob = finite(score.logprob)
                top = {self._name(i): finite(value) for i, value in score.top[:num_top]}
                top[name] = logprob
            lists.tokens.append(name)
            lists.token_logprobs.append(logprob)
            lists.top_logprobs.append(top)
            lists.text_offset.append(self._text_len)
            self._text_len += len(self._detokenizer.push(token_id))
        return msgspec.structs.asdict(lists)

    def _own(
        self, token_id: int, score: TokenScore | None, num_top: int
    ) -> dict[str, PromptLogprob] | None:
        if score is None:
            return None
        best = enumerate(score.top[:num_top], start=1)
        ranked = [(token_id, score.logprob, score.rank), *((i, v, rank) for rank, (i, v) in best)]
        return {
            str(i): PromptLogprob(
                logprob=finite(logprob),
                rank=rank,
                decoded_token=self._token_bytes[i].decode("utf-8", "replace"),
            )
            for i, logprob, rank in ranked
        }

    def _name(self, token_id: int) -> str:
        return token_name(token_id, self._token_bytes, by_id=self._names_are_ids)


def _items(values: Sequence[Any]) -> bytes:
    """The items of a JSON list, without its brackets."""
    return _encode(values)[1:-1]


def _list(items: Sequence[bytes]) -> Any:
    """A JSON list for a field whose schema is a list: msgspec writes a Raw as it is."""
    return Raw(b"[%b]" % b",".join(filter(None, items)))


def prompt_logprobs_writer(
    request: GenerationRequest, spec: SequenceRequest, token_bytes: Mapping[int, bytes]
) -> PromptLogprobsWriter | None:
    """The writer of the log-probabilities of one choice's prompt; None if it has none."""
    if spec.sampling.prompt_logprobs is None:
        return None
    return PromptLogprobsWriter(
        spec.prompt_ids,
        token_bytes,
        num_echoed=request.num_echoed_logprobs,
        num_own=request.prompt_logprobs,
        names_are_ids=bool(request.return_tokens_as_token_ids),
    )


def check_prompt_logprobs(
    request: GenerationRequest, specs: Sequence[SequenceRequest], most: int
) -> None:
    """Raises ApiError if the answer to ``request`` would have more than ``most`` log-probabilities
    of prompts."""
    asked = (request.num_echoed_logprobs, request.prompt_logprobs)
    num_each = sum(1 + num_top for num_top in asked if num_top is not None)
    num_tokens = sum(spec.num_scored for spec in specs)
    if num_tokens * num_each <= most:
        return
    raise invalid(
        "logprobs" if request.prompt_logprobs is None else "prompt_logprobs",
        f"{num_tokens} tokens of prompts in all choices with {num_each} log-probabilities each are "
        f"{num_tokens * num_each}; an answer has at most {most}. Ask for fewer alternatives, or "
        "for fewer prompts or choices at a time.",
    )
