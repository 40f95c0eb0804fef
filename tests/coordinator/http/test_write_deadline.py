"""Clients that take nothing, or little, of what is sent to them."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from coordinator.http.http_settings import HttpSettings
from coordinator.http.server.connections import Connections
from coordinator.http.server.head_deadline import HeadDeadline
from coordinator.http.server.http_server import HttpServer
from coordinator.http.server.write_deadline import WriteDeadline
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import FakeCore, Says
from tests.coordinator.served import SEND_BUFFER_BYTES, App, post, serving

LONG = 8 * 2**20  # bytes: more than the kernel keeps for a connection


def long_answer(sent: asyncio.Event) -> App:
    """An answer of 8 MiB in one piece."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % LONG)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(LONG)})
        sent.set()

    return app


def read_all(client: socket.socket) -> None:
    while client.recv(2**20):
        pass


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


async def test_a_pipelining_client_that_takes_nothing_is_reset_and_told_of_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing of the answers stays in the kernel, and the running request learns it."""
    caplog.set_level(logging.INFO)
    ended: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers = [(b"content-length", b"%d" % LONG)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in range(8):
            body = bytes(LONG // 8)
            await send({"type": "http.response.body", "body": body, "more_body": part < 7})
        ended.append((await receive())["type"] == "http.disconnect")

    async with serving(app, write_timeout_s=0.2) as (server, port):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 30)
        async with asyncio.timeout(5):
            while not ended:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not server.server_state.connections
        assert not server.server_state.tasks
        client.settimeout(5.0)
        with pytest.raises(ConnectionResetError):
            read_all(client)
        client.close()
    assert ended == [True], "requests behind the first one were served"
    lines = [r for r in caplog.records if not r.name.startswith("uvicorn.error")]
    assert [(r.levelname, r.args and "reads nothing" in r.msg) for r in lines] == [("INFO", True)]
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


async def test_a_pipelining_client_that_disconnects_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent, gone = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        sent.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.body", "body": b"late"})
        gone.set()

    async with serving(app) as (_, port), asyncio.timeout(5):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 5)
        await sent.wait()
        client.close()
        await gone.wait()
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


class Transport:
    """Holds what is written; the test says what its client takes."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.num_waiting += len(data)

    def get_write_buffer_size(self) -> int:
        return self.num_waiting

    def get_extra_info(self, name: str) -> None:
        return None

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


async def test_a_closed_connection_leaves_no_timer_behind() -> None:
    loop, config = Loop(), Config(app=None, lifespan="off")  # type: ignore[arg-type]
    protocol = HeadDeadline(config, ServerState(), {}, HttpSettings("tiny"), Connections(1))
    protocol.loop = loop  # type: ignore[assignment]
    protocol.connection_made(Mock(spec=asyncio.Transport, get_extra_info=lambda name: None))
    protocol.transport.write(bytes(100))
    assert len(loop.timers) == 2, "one for the head, one for the write"
    protocol.connection_lost(ConnectionResetError())
    assert not loop.timers


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
    app = make_app(core, tokenizer, HttpSettings("tiny"))
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
    """Before the server has ended: after that the loop ends."""
    core = says("The quick brown fox. " * 20)
    app = make_app(core, tokenizer, HttpSettings("tiny"))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    server = HttpServer(app, listener, HttpSettings("tiny"), Connections(64))
    running = asyncio.create_task(server.serve())
    async with slow_reader(core, listener.getsockname()[1]):
        server.exit_within(0.01)
        await asyncio.wait_for(running, 20)
        assert core.num_cut == 60
