"""The server under test: requests with deadlines, answers as they were on the wire."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.client.client import Client
from bench.client.exchange import Exchange
from bench.conformance.sse import Events

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_SHOWN = 200


class Unanswered(Exception):
    """No whole response within the deadlines; the message says what came."""


@dataclass(frozen=True)
class Answer:
    """One whole response; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's value; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def events(self) -> Events:
        return Events.parse(self.body)

    def __str__(self) -> str:
        text = self.body[:_SHOWN].decode(errors="replace")
        return f"HTTP {self.status}: {text}{'…' if len(self.body) > _SHOWN else ''}"


@dataclass(frozen=True)
class Server:
    """Every request raises Unanswered when the server is down, silent or speaks no HTTP."""

    client: Client
    model: str
    api_key: str | None = None

    async def get(self, path: str) -> Answer:
        return whole(await self.client.get(path))

    async def post(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """``model`` is added unless the body has one."""
        content = json.dumps({"model": self.model, **body}).encode()
        return whole(await self.client.request("POST", path, content, headers=headers))

    async def send(self, path: str, content: bytes) -> Answer:
        """Bytes as they are, called JSON."""
        return whole(await self.client.request("POST", path, content))

    async def chat(self, question: str, **fields: Any) -> Answer:
        """One user's turn, at temperature 0 unless ``fields`` say otherwise."""
        messages = [{"role": "user", "content": question}]
        return await self.post(CHAT, {"messages": messages, "temperature": 0, **fields})

    async def complete(self, prompt: Any, **fields: Any) -> Answer:
        return await self.post(COMPLETIONS, {"prompt": prompt, "temperature": 0, **fields})


def whole(exchange: Exchange) -> Answer:
    if exchange.failure is not None:
        raise Unanswered(f"{exchange.failure.value}: {exchange.detail}")
    assert exchange.status is not None, "an exchange without failure has a status"
    return Answer(exchange.status, exchange.headers, exchange.body)
