"""The JSON of ``/v1/completions``."""

import time
from collections.abc import Mapping, Sequence

from coordinator.http.choice import Delta
from coordinator.http.logprobs import completion_logprobs
from coordinator.http.writer import Json, Usage
from transport.wire.token_ids import TokenIds


class CompletionWriter:
    """Choice ``i`` belongs to prompt ``i // n``. ``echoes`` (text) and ``prompt_ids`` hold an
    entry for each prompt when asked for."""

    def __init__(
        self,
        response_id: str,
        model: str,
        token_bytes: Mapping[int, bytes],
        *,
        n: int,
        logprobs: bool,
        echoes: Sequence[str] | None,
        prompt_ids: Sequence[TokenIds] | None,
    ) -> None:
        self._id = response_id
        self._model = model
        self._created = int(time.time())
        self._token_bytes = token_bytes
        self._n = n
        self._logprobs = logprobs
        self._echoes = echoes
        self._prompt_ids = prompt_ids
        self._started: set[int] = set()

    def head(self) -> Json:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
        }

    def chunk(self, index: int, delta: Delta) -> Json:
        first = index not in self._started
        if first:
            self._started.add(index)
        chunk = self.head()
        chunk["choices"] = [self._choice(index, delta, first=first)]
        return chunk

    def body(self, choices: Sequence[Delta], usage: Usage) -> Json:
        body = self.head()
        body["choices"] = [self._choice(i, whole, first=True) for i, whole in enumerate(choices)]
        body["usage"] = usage.json()
        return body

    def _choice(self, index: int, delta: Delta, *, first: bool) -> Json:
        prompt = index // self._n
        echo = self._echoes[prompt] if first and self._echoes is not None else ""
        logprobs = None
        if self._logprobs:
            logprobs = completion_logprobs(delta.tokens, delta.offsets, self._token_bytes)
        choice = {
            "index": index,
            "text": echo + delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.finish,
        }
        if self._prompt_ids is not None:
            choice["token_ids"] = [token.token_id for token in delta.tokens]
            if first:
                choice["prompt_token_ids"] = self._prompt_ids[prompt].tolist()
        return choice
