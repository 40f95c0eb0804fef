"""The JSON of ``/v1/chat/completions``."""

import time
from collections.abc import Mapping, Sequence

from coordinator.http.choice import Delta
from coordinator.http.logprobs import chat_logprobs
from coordinator.http.writer import Json, Usage
from transport.wire.token_ids import TokenIds


class ChatWriter:
    """One conversation, n choices. ``prompt_ids`` is given when token ids are asked for."""

    def __init__(
        self,
        response_id: str,
        model: str,
        token_bytes: Mapping[int, bytes],
        *,
        logprobs: bool,
        prompt_ids: TokenIds | None,
    ) -> None:
        self._id = response_id
        self._model = model
        self._created = int(time.time())
        self._token_bytes = token_bytes
        self._logprobs = logprobs
        self._prompt_ids = prompt_ids
        self._started: set[int] = set()

    def head(self) -> Json:
        return self._head("chat.completion.chunk")

    def chunk(self, index: int, delta: Delta) -> Json:
        first_of_all, first = not self._started, index not in self._started
        message: Json = {}
        if first:
            self._started.add(index)
            message = {"role": "assistant", "content": delta.text}
        elif delta.text:
            message = {"content": delta.text}
        chunk = self.head()
        chunk["choices"] = [self._choice(index, delta, "delta", message, first=first)]
        # vLLM has the prompt's ids beside a chat's choices, and in the choices of a completion.
        if first_of_all and self._prompt_ids is not None:
            chunk["prompt_token_ids"] = self._prompt_ids.tolist()
        return chunk

    def body(self, choices: Sequence[Delta], usage: Usage) -> Json:
        body = self._head("chat.completion")
        body["choices"] = [
            self._choice(
                index, whole, "message",
                {"role": "assistant", "content": whole.text, "refusal": None},
            )
            for index, whole in enumerate(choices)
        ]  # fmt: skip
        body["usage"] = usage.json()
        if self._prompt_ids is not None:
            body["prompt_token_ids"] = self._prompt_ids.tolist()
        return body

    def _head(self, kind: str) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }

    def _choice(
        self, index: int, delta: Delta, key: str, message: Json, *, first: bool = True
    ) -> Json:
        tokens = delta.tokens
        choice = {
            "index": index,
            key: message,
            "logprobs": chat_logprobs(tokens, self._token_bytes) if self._logprobs else None,
            "finish_reason": delta.finish,
        }
        if self._prompt_ids is not None:
            choice["token_ids"] = [token.token_id for token in tokens]
            if first:
                choice["prompt_token_ids"] = self._prompt_ids.tolist()
        return choice
