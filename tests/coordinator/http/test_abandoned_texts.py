"""Texts whose clients have left are not tokenized, and no prompt waits for lookups."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from coordinator.http.http_settings import HttpSettings
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import Says

PATHS = {
    "/tokenize": b'{"prompt": "long"}',
    "/v1/completions": b'{"prompt": "long"}',
    "/v1/chat/completions": b'{"messages": [{"role": "user", "content": "long"}]}',
}


class HeldBack:
    """Keeps texts from being encoded until ``release``; counts those that have begun."""

    def __init__(self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_begun = 0
        self.release = threading.Event()
        encode = tokenizer.encode

        def held(text: str, **options: Any) -> list[int]:
            if "long" in text:
                self.num_begun += 1
                self.release.wait(10)
            return encode(text, **options)

        monkeypatch.setattr(tokenizer, "encode", held)


@pytest.fixture
def held(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Tokenizer, HeldBack]]:
    tokenizer = Tokenizer.load(checkpoint)
    held = HeldBack(tokenizer, monkeypatch)
    yield tokenizer, held
    held.release.set()
    tokenizer.close()


async def leave(app: Any, path: str, num: int) -> list[int]:
    """Statuses of so many requests whose clients are gone once all of them have come."""
    gone = asyncio.Barrier(num)
    statuses: list[int] = []

    async def one() -> None:
        messages = [{"type": "http.request", "body": PATHS[path]}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await gone.wait()  # for all the others to be read
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
            "headers": [(b"content-type", b"application/json")], "query_string": b"",
            "asgi": {"version": "3.0"}, "scheme": "http",
            "root_path": "", "http_version": "1.1",
        }  # fmt: skip
        await app(scope, receive, send)

    async with asyncio.timeout(5):
        await asyncio.gather(*(one() for _ in range(num)))
    return statuses


@pytest.mark.parametrize("path", PATHS)
async def test_a_text_whose_client_left_in_the_queue_is_not_tokenized(
    says: Says, held: tuple[Tokenizer, HeldBack], path: str
) -> None:
    tokenizer, back = held
    core = says()
    app = make_app(core, tokenizer, HttpSettings("tiny"))
    assert await leave(app, path, 12) == [499] * 12
    num_begun = back.num_begun
    assert num_begun <= 4
    back.release.set()
    assert await tokenizer.run(tokenizer.encode, "short")
    assert await tokenizer.run(tokenizer.encode, "short", aside=True)
    assert back.num_begun == num_begun
    assert core.streams == []


async def test_prompts_do_not_wait_for_lookups(
    says: Says, held: tuple[Tokenizer, HeldBack]
) -> None:
    tokenizer, _ = held
    app = make_app(says(), tokenizer, HttpSettings("tiny"))
    await leave(app, "/tokenize", 12)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        async with asyncio.timeout(5):
            response = await client.post("/v1/completions", json={"prompt": "short"})
    assert response.status_code == 200
