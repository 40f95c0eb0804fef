"""Clients that are old, ask for another protocol, or take nothing, at the coordinator's server."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from starlette.types import Receive, Scope, Send

from coordinator.http.api import create_app
from coordinator.http.connections import Connections
from coordinator.http.http_protocol import WriteDeadline
from coordinator.http.http_settings import HttpSettings
from coordinator.server import HttpServer
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.fake_core import FakeCore

Says = Callable[..., FakeCore]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UPGRADE = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: "
LONG = 8 * 2**20  # bytes: more than the kernel keeps for a connection


@asynccontextmanager
async def serving(app: App, **settings: float) -> AsyncIterator[tuple[HttpServer, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)  # its connections have it too
    server = HttpServer(app, listener, HttpSettings("tiny", **settings), Connections(64))  # type: ignore[arg-type]
    running = asyncio.create_task(server.serve())
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await running


@pytest.fixture
async def port(says: Says, tokenizer: Tokenizer) -> AsyncIterator[int]:
    app = create_app(says("one two"), tokenizer, HttpSettings("tiny"))
    async with serving(app) as (_, port):
        yield port


async def exchange(port: int, said: bytes) -> tuple[bytes, bytes]:
    """Head and all that follows it until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(5):
        answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower(), body


def post(body: dict[str, object], head: bytes = b"Host: x\r\n", version: bytes = b"1.1") -> bytes:
    content = json.dumps(body).encode()
    line = b"POST /v1/completions HTTP/%b\r\n" % version
    return line + head + b"Content-Length: %d\r\n\r\n" % len(content) + content


# ---- HTTP/1.0


async def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection(port: int) -> None:
    said = post({"prompt": "x", "stream": True}, version=b"1.0")
    head, body = await exchange(port, said)
    assert head.startswith(b"http/1.1 200")
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert b"connection: close" in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n"])
async def test_an_answer_to_http_1_0_has_its_length_and_is_the_last(port: int, more: bytes) -> None:
    head, body = await exchange(port, post({"prompt": "x"}, more, version=b"1.0"))
    assert head.startswith(b"http/1.1 200")
    assert b"content-length: %d" % len(body) in head
    assert b"connection: close" in head
    assert json.loads(body)["choices"][0]["text"] == "one two"
    head, body = await exchange(port, b"HEAD /health HTTP/1.0\r\n\r\n")
    assert head.startswith(b"http/1.1 200")
    assert body == b""


# ---- upgrades


@pytest.mark.parametrize("path", [b"/", b"/v1/completions", b"/nowhere"])
async def test_a_websocket_is_refused_with_words(port: int, path: bytes) -> None:
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    said = b"GET %b HTTP/1.1\r\n" % path + UPGRADE + b"websocket\r\n" + key + b"\r\n"
    head, body = await exchange(port, said + b"\x81\x05hello")
    assert head.startswith(b"http/1.1 400")
    error = json.loads(body)["error"]
    assert error["code"] == "upgrade_not_supported"
    assert "server-sent events" in error["message"]


@pytest.mark.parametrize("at", [None, 20, 80, -3])
async def test_a_request_that_offers_h2c_is_served_as_it_is(port: int, at: int | None) -> None:
    offer = (
        b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
    )
    said = post({"prompt": "x"}, offer)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said[:at] if at else said)
    if at:
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(said[at:])
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(5):
        answer = await reader.read(-1)
    writer.close()
    assert b'"text":"one two"' in answer
    assert answer.endswith(b'{"status":"ok"}')


# ---- what is no HTTP


@pytest.mark.parametrize(
    "said",
    [
        b"hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_gets_an_error_of_our_shape(port: int, said: bytes) -> None:
    head, body = await exchange(port, said)
    assert head.startswith(b"http/1.1 400")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


PIECES = [
    b"GET / HTTP/1.1\r\n", b"GET /health HTTP/1.0\r\n", b"\r\n", b"Host: x\r\n",
    b"Upgrade: h2c\r\n",
    b"Upgrade: websocket\r\n", b"Connection: upgrade\r\n", b"Content-Length: 3\r\n", b"abc",
    b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n", b"\x00\xff",
    b"Connection: close\r\n", b"\r\n\r\n",
]  # fmt: skip


async def test_no_sequence_of_pieces_gets_a_500_or_is_left_hanging(
    says: Says, tokenizer: Tokenizer
) -> None:
    draw = random.Random(5)
    said = [b"".join(draw.choices(PIECES, k=draw.randint(1, 9))) for _ in range(300)]
    app = create_app(says("a"), tokenizer, HttpSettings("tiny"))

    async def answer_to(port: int, pieces: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(pieces)
        writer.write_eof()
        try:
            return await reader.read(-1)
        except ConnectionResetError:  # it was closed with something unread
            return b""
        finally:
            writer.close()

    async with serving(app) as (_, port), asyncio.timeout(20):
        for first in range(0, len(said), 50):
            answers = await asyncio.gather(*(answer_to(port, s) for s in said[first : first + 50]))
            assert not [a for a in answers if b"HTTP/1.1 5" in a]


# ---- clients that take nothing


def long_answer(sent: asyncio.Event) -> App:
    """An answer of 8 MiB in one piece."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % LONG)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(LONG)})
        sent.set()

    return app


async def test_a_client_that_takes_nothing_of_any_answer_is_disconnected() -> None:
    sent = asyncio.Event()
    async with serving(long_answer(sent), write_timeout_s=0.2) as (server, port):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(5):
            await sent.wait()
            assert server.server_state.connections
            while server.server_state.connections:  # noqa: ASYNC110, uvicorn has no event for it
                await asyncio.sleep(0.01)
        client.close()


class Transport:
    """Holds what is written; the test says what its client takes."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.num_waiting += len(data)

    def get_write_buffer_size(self) -> int:
        return self.num_waiting

    def abort(self) -> None:
        self.aborted = True


class Loop:
    """A clock, and the timers that are due when it is turned."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> SimpleNamespace:
        timer = (self.now + delay, call)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def pass_s(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and min(self.timers)[0] <= end:
            timer = min(self.timers)
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = end


def test_a_client_that_takes_a_byte_now_and_then_is_kept() -> None:
    transport, loop = Transport(), Loop()
    deadline = WriteDeadline(transport, 60.0, loop)  # type: ignore[arg-type]
    deadline.write(bytes(100))
    for _ in range(10):
        loop.pass_s(50.0)
        transport.num_waiting -= 1
        deadline.write(b"more")
    assert not transport.aborted
    loop.pass_s(60.0 + 15.0)
    assert transport.aborted
    assert not loop.timers


def test_a_client_has_its_time_from_when_something_waits_for_it() -> None:
    transport, loop = Transport(), Loop()
    deadline = WriteDeadline(transport, 60.0, loop)  # type: ignore[arg-type]
    deadline.write(bytes(100))
    transport.num_waiting = 0
    loop.pass_s(1000.0)
    assert not loop.timers, "it looks while nothing waits"
    deadline.write(bytes(100))
    loop.pass_s(59.0)
    assert not transport.aborted
    deadline.stop()
    loop.pass_s(1000.0)
    assert not transport.aborted


# ---- the end of the service


async def until_still(core: FakeCore) -> None:
    """Until no more is sent: the client's side of the connection is full."""
    num_sent = -1
    while num_sent != (num_sent := sum(stream.num_sent for stream in core.streams)):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


@asynccontextmanager
async def slow_reader(core: FakeCore, port: int) -> AsyncIterator[socket.socket]:
    """A client with a long stream, of which it has taken the first bytes."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    client.sendall(post({"prompt": "x", "stream": True, "n": 60, "logprobs": 5}))
    client.setblocking(False)
    await asyncio.get_running_loop().sock_recv(client, 100)
    await until_still(core)
    assert "" in core.outcomes, "all of it was sent before it was read"
    yield client
    client.close()


async def test_a_slow_reader_gets_the_rest_while_the_service_ends(
    says: Says, tokenizer: Tokenizer
) -> None:
    core = says("The quick brown fox. " * 20)
    app = create_app(core, tokenizer, HttpSettings("tiny"))
    async with serving(app) as (server, port), slow_reader(core, port) as client:
        server.exit_within(30.0)
        answer = b""
        async with asyncio.timeout(20):
            while piece := await asyncio.get_running_loop().sock_recv(client, 2**20):
                answer = answer[-30:] + piece
        assert b"data: [DONE]\n\n" in answer[-30:]
        assert core.outcomes == ["finished"] * 60
        assert core.num_cut == 0


async def test_a_stream_that_is_cut_off_when_the_service_ends_is_told_as_such(
    says: Says, tokenizer: Tokenizer
) -> None:
    core = says("The quick brown fox. " * 20)
    app = create_app(core, tokenizer, HttpSettings("tiny"))
    async with serving(app) as (server, port), slow_reader(core, port):
        server.exit_within(0.01)
        async with asyncio.timeout(10):
            while not core.num_cut:  # noqa: ASYNC110, the fake core has no event for it
                await asyncio.sleep(0.01)
        assert core.num_cut == 60
