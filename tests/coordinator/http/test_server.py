"""Behind a real server on a real socket: departures, oversized bodies, OpenAI's own client."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from coordinator.__main__ import exit_status
from coordinator.http.http_settings import HttpSettings
from coordinator.record.redis_link import RedisUnavailable
from coordinator.server import CoordinatorSettings
from coordinator.text.tokenizer import Tokenizer
from telemetry.last_words import CANNOT_START, TRY_AGAIN
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import FakeCore, Says

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def serving(core: FakeCore, tokenizer: Tokenizer, **settings: Any) -> AsyncIterator[str]:
    """The app under uvicorn; yields its base URL."""
    app = make_app(core, tokenizer, HttpSettings("tiny", **settings))
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(10), httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await client.get(f"{url}/health")
                    break
                await asyncio.sleep(0.01)
        yield url
    finally:
        server.should_exit = True
        server.force_exit = True
        await running


@pytest.fixture
def gate() -> asyncio.Semaphore:
    return asyncio.Semaphore(0)


async def raw(url: str, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    writer.write(request)
    await writer.drain()
    return reader, writer


def http_post(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110, the fake core has no event for it
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("num_tokens", [0, 2])
async def test_a_client_that_leaves_cancels_every_choice(
    says: Says, tokenizer: Tokenizer, gate: asyncio.Semaphore,
    path: str, streamed: bool, n: int, num_tokens: int,
) -> None:  # fmt: skip
    core = says("one two three four", gate=gate)
    async with serving(core, tokenizer) as url:
        body = {"messages": USER} if path == CHAT else {"prompt": "x"}
        _, writer = await raw(url, http_post(path, {**body, "stream": streamed, "n": n}))
        await until(lambda: len(core.streams) == n)
        for _ in range(num_tokens):
            gate.release()
        await until(lambda: sum(s.num_sent for s in core.streams) == num_tokens)
        writer.close()
        left_at = time.perf_counter()
        async with asyncio.timeout(5):
            await asyncio.gather(*(stream.ended.wait() for stream in core.streams))
        assert time.perf_counter() - left_at < 1
        assert core.outcomes == ["cancelled"] * n


async def test_a_body_of_100_mb_is_refused(
    says: Says, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    linger_s = 40.0  # longer than a busy machine takes to send it
    monkeypatch.setattr("coordinator.http.bodies.body_limit._LINGER_S", linger_s)
    size = 100 * 2**20

    async def content() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 2**20

    async with serving(says(), tokenizer) as url, httpx.AsyncClient(base_url=url) as client:
        for length in ({"content-length": str(size)}, {}):
            headers = {"content-type": "application/json", **length}
            started = time.perf_counter()
            response = await client.post(COMPLETIONS, content=content(), headers=headers)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "body_too_large"
            assert time.perf_counter() - started < linger_s / 2
        assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200


async def test_a_declared_length_alone_is_refused(says: Says, tokenizer: Tokenizer) -> None:
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {10**11}\r\n\r\n"
    async with serving(says(), tokenizer) as url:
        reader, writer = await raw(url, head.encode())
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"body_too_large")
            assert answer.startswith(b"HTTP/1.1 413")
            assert (await reader.read()).endswith(b"}")  # and the connection is closed
        writer.close()


@pytest.mark.parametrize(
    "header", [b"X-Request-Id: a\x00b", b"X-Request-Id: a\rb", b"X-Request-Id: \xff\xfe"]
)
async def test_headers_that_are_none(says: Says, tokenizer: Tokenizer, header: bytes) -> None:
    async with serving(says(), tokenizer) as url, httpx.AsyncClient(base_url=url) as client:
        request = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header
        reader, writer = await raw(url, request + b"\r\n\r\n")
        async with asyncio.timeout(1):
            answer = await reader.read()
        writer.close()
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 200"))
        assert b"a\x00b" not in answer
        assert b"\xff" not in answer
        assert (await client.get("/health")).status_code == 200


async def test_a_slow_reader_loses_nothing(says: Says, tokenizer: Tokenizer) -> None:
    text = "The quick brown fox. " * 15
    async with serving(says(text), tokenizer) as url:
        reader, writer = await raw(url, http_post(CHAT, {"messages": USER, "stream": True}))
        answer = b""
        while b"[DONE]" not in answer:
            answer += await reader.read(100)
        writer.close()
    chunks = [line[6:] for line in answer.decode().split("\n") if line.startswith("data: {")]
    deltas = [json.loads(chunk.rstrip("\r"))["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == text


@pytest.fixture
async def client(
    says: Says, tokenizer: Tokenizer
) -> AsyncIterator[tuple[openai.AsyncOpenAI, FakeCore]]:
    core = says("Hello, wörld! 🙂")
    async with (
        serving(core, tokenizer) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, core


async def test_openai_python(client: tuple[openai.AsyncOpenAI, FakeCore]) -> None:
    api, _ = client
    answer = await api.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].message.content == "Hello, wörld! 🙂"
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    stream = await api.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hello, wörld! 🙂"
    assert chunks[-1].usage == answer.usage
    completion = await api.completions.create(model="tiny", prompt=["a", "b"], n=2, logprobs=1)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert [model.id async for model in await api.models.list()] == ["tiny"]


async def test_openai_python_sees_its_errors(
    client: tuple[openai.AsyncOpenAI, FakeCore],
) -> None:
    api, core = client
    with pytest.raises(openai.NotFoundError) as not_found:
        await api.completions.create(model="gpt-9", prompt="x")
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await api.completions.create(model="tiny", prompt="x", max_tokens=10**6)
    assert (bad.value.code, bad.value.param) == ("context_length_exceeded", "max_tokens")
    core.accept = 0
    with pytest.raises(openai.InternalServerError) as overloaded:
        await api.completions.create(model="tiny", prompt="x")
    assert overloaded.value.response.headers["retry-after"] == "3"


async def test_openai_python_raises_for_a_failure_in_the_stream(
    says: Says, tokenizer: Tokenizer
) -> None:
    from coordinator.core.contract import GenerationFailed

    failure = GenerationFailed("peer_gone", "the worker died")
    core = FakeCore(lambda _: tokenizer.encode("two words"), failure=failure)
    async with (
        serving(core, tokenizer) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as api,
    ):
        stream = await api.completions.create(model="tiny", prompt="x", stream=True)
        with pytest.raises(openai.APIError, match="the worker died"):
            async for _ in stream:
                pass


def test_a_start_without_redis_may_be_tried_again_but_not_one_with_a_wrong_password() -> None:
    url = "redis://:secret@there"
    assert exit_status(RedisUnavailable(url, "did not answer")) == TRY_AGAIN
    assert exit_status(RedisUnavailable(url, "failed: WRONGPASS", final=True)) == CANNOT_START
    assert exit_status(ValueError("port: 0 is not free")) == CANNOT_START


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_drain_takes_no_time_that_makes_no_sense(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"^drain_timeout_s: {seconds} "):
        CoordinatorSettings(
            "127.0.0.1", 0, "tcp://127.0.0.1:5555", "redis://there", Path("model"),
            HttpSettings("tiny"), drain_timeout_s=seconds,
        )  # fmt: skip
