"""Bodies that the ingress holds: bounded, and given back however a request ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from deploy.ray import ingress
from deploy.ray.ingress import Ingress
from tests.ray.test_forward import Client, Handle, events, node

MOST = 10


class OneIngress(Ingress):
    def __del__(self) -> None:  # type: ignore[override]
        """Ray would await the other one."""


@asynccontextmanager
async def door(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OneIngress]:
    monkeypatch.setattr(ingress, "MAX_HELD_BYTES", MOST)
    found = OneIngress(Handle([url]))  # type: ignore[arg-type]
    try:
        yield found
    finally:
        if found._session is not None:
            await found._session.close()


def request(*parts: bytes, key: str, address: str = "", leaves: bool = False) -> Request:
    """Of a client with an address of its own, unless there is one in ``address``."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": True} for part in parts
    ]
    messages.append({"type": "http.disconnect"} if leaves else {"type": "http.request"})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    headers = [(b"authorization", key.encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b""}
    return Request(scope | {"headers": headers, "client": (address or f"host-{key}", 1)}, receive)


async def status(answer: Response) -> int:
    client = Client()
    await answer({"type": "http", "path": "/", "headers": []}, client.receive, client.send)
    found: int = client.sent[0]["status"]
    return found


async def test_a_body_is_held_until_its_answer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(events) as url, door(url, monkeypatch) as front, asyncio.timeout(30):
        waiting = await front(request(b"{", b"}", key="a"))
        assert front._bytes._num_held == 2
        mine = await front(request(b" " * 4, key="a"))
        assert await status(mine) == 429, "more than half of what may be held"
        others = await front(request(b" " * 4, key="b"))
        assert await status(await front(request(b" " * 5, key="c"))) == 503
        assert front._bytes._num_held == 6
        client = Client()
        await waiting({"path": "/v1/chat/completions"}, client.receive, client.send)
        assert client.body == b"data: 1\n\ndata: [DONE]\n\n"
        assert front._bytes._num_held == 4
        del others
        assert front._bytes._num_held == 0, "it was never sent"


@pytest.mark.parametrize(
    "clients",
    [[("a", "10.0.0.1"), ("b", "10.0.0.1")], [("", "10.0.0.1")] * 2,
     [("a", "10.0.0.1"), ("a", "10.0.0.2")]],
    ids=["keys of one address", "no keys", "one key"],
)  # fmt: skip
async def test_an_address_has_half_and_so_has_a_key(
    clients: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door("http://unused", monkeypatch) as front:
        first, second = [
            await front(request(b" " * 3, key=key, address=address)) for key, address in clients
        ]
        assert await status(second) == 429
        assert front._bytes._num_held == 3
        del first
        assert front._bytes._num_held == 0
        assert not front._bytes._held


async def test_what_does_not_come_whole_is_held_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress, "MAX_BODY_BYTES", 3)
    async with door("http://unused", monkeypatch) as front:
        assert await status(await front(request(b" " * 4, key="a"))) == 413
        assert await status(await front(request(b" " * 3, key="a", leaves=True))) == 499
        assert front._bytes._num_held == 0
