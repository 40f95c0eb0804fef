"""A planned restart: no request is refused, and what is open is finished."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.drain import StopSignals, drain
from coordinator.http.http_settings import HttpSettings
from coordinator.http.server.connections import Connections
from coordinator.http.server.http_server import HttpServer

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
DEADLINE_S = 5.0


class Hub:
    """Refuses from its drain on."""

    draining = False

    async def drain(self, timeout_s: float) -> None:
        self.draining = True


class Server:
    """An HTTP server with a drain; each answer waits for the gate and names its server."""

    def __init__(self, listener: socket.socket, name: bytes, *, shared: bool = True) -> None:
        self.gate, self.begun = asyncio.Event(), asyncio.Semaphore(0)
        self.orders, self.hub, self.connections = (
            StopSignals(has_successor=True),
            Hub(),
            Connections(64),
        )

        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.begun.release()
            status = 503 if self.hub.draining else 200
            headers = [(b"content-length", b"%d" % len(name))]
            head = {"type": "http.response.start", "status": status, "headers": headers}
            if scope["path"] == "/stream":
                await send(head)
                await self.gate.wait()
            else:
                await self.gate.wait()
                await send(head)
            await send({"type": "http.response.body", "body": name})

        self.http = HttpServer(
            app,  # type: ignore[arg-type]
            listener,
            HttpSettings("m"),
            self.connections,
            listener_is_shared=shared,
        )
        self._running = asyncio.create_task(self.http.serve())

    def drained(self, timeout_s: float = DEADLINE_S) -> "asyncio.Task[None]":
        return asyncio.create_task(
            drain(self.orders, self.hub, self.http, self.connections, timeout_s)
        )

    async def close(self) -> None:
        self.gate.set()
        self.http.should_exit = self.http.force_exit = True
        await self._running


@asynccontextmanager
async def serving(listener: socket.socket, name: bytes) -> AsyncIterator[Server]:
    server = Server(listener.dup(), name)
    try:
        yield server
    finally:
        await server.close()


@pytest.fixture
async def listener() -> AsyncIterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


class Client:
    """One connection."""

    @classmethod
    async def of(cls, listener: socket.socket) -> "Client":
        client = cls()
        client._reader, client._writer = await asyncio.open_connection(*listener.getsockname())
        return client

    def ask(self, path: bytes = b"/") -> None:
        self._writer.write(REQUEST.replace(b"/", path, 1))

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and body."""
        async with asyncio.timeout(DEADLINE_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            return head, await self._reader.readexactly(3)

    async def closed(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.read() == b""


async def begun(server: Server, count: int = 1) -> None:
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(count):
            await server.begun.acquire()


async def test_what_connects_waits_and_what_is_open_is_served(listener: socket.socket) -> None:
    async with serving(listener, b"old") as old:
        under_way, kept, idle = [await Client.of(listener) for _ in range(3)]
        under_way.ask()
        kept.ask()
        await begun(old, 2)
        old.gate.set()
        assert b"connection: close" not in (await kept.answer())[0]
        assert (await under_way.answer())[1] == b"old"
        old.gate.clear()
        under_way.ask()
        await begun(old)
        draining = old.drained()
        await asyncio.sleep(0)
        late = await Client.of(listener)
        late.ask()
        kept.ask()
        await begun(old)
        old.gate.set()
        for client in (under_way, kept):
            head, body = await client.answer()
            assert (head[:12], body) == (b"HTTP/1.1 200", b"old")
            assert b"connection: close" in head
            assert await client.closed()
        assert await idle.closed()
        await asyncio.wait_for(draining, DEADLINE_S)
        assert old.begun.locked(), "the late one was not let in"
    async with serving(listener, b"new") as new:
        new.gate.set()
        head, body = await late.answer()
        assert (head[:12], body) == (b"HTTP/1.1 200", b"new")


async def test_an_answer_that_did_not_say_close_is_followed_by_one_that_does(
    listener: socket.socket,
) -> None:
    """A client sends its next request as soon as a stream has ended."""
    async with serving(listener, b"old") as old:
        client = await Client.of(listener)
        client.ask(b"/stream")
        await begun(old)
        draining = old.drained()
        await asyncio.sleep(0)
        old.gate.set()
        assert b"connection: close" not in (await client.answer())[0]
        client.ask()
        head, body = await client.answer()
        assert (head[:12], body) == (b"HTTP/1.1 200", b"old")
        assert b"connection: close" in head
        assert await client.closed()
        await asyncio.wait_for(draining, DEADLINE_S)


async def test_without_a_successor_new_requests_are_refused(listener: socket.socket) -> None:
    async with serving(listener, b"old") as old:
        client = await Client.of(listener)
        client.ask()
        await begun(old)
        draining = old.drained()
        await asyncio.sleep(0)
        late = await Client.of(listener)
        late.ask()
        old.orders.interrupt()  # none will come after all
        await asyncio.wait_for(draining, DEADLINE_S)
        old.gate.set()
        assert (await client.answer())[0][:12] == b"HTTP/1.1 200"
        assert (await late.answer())[0][:12] == b"HTTP/1.1 503"
    async with serving(listener, b"old") as old:
        old.orders.interrupt()
        await asyncio.wait_for(old.drained(), DEADLINE_S)
        old.gate.set()
        client = await Client.of(listener)
        client.ask()
        assert (await client.answer())[0][:12] == b"HTTP/1.1 503"


async def test_what_never_ends_is_left_to_the_hub_at_the_deadline(listener: socket.socket) -> None:
    async with serving(listener, b"old") as old:
        client = await Client.of(listener)
        client.ask()
        await begun(old)
        await asyncio.wait_for(old.drained(timeout_s=0.05), DEADLINE_S)
        assert old.hub.draining


async def test_a_proxy_that_waits_is_refused_by_the_kernel() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    old = Server(listener, b"old", shared=False)
    client = await Client.of(listener)
    client.ask()
    await begun(old)
    draining = old.drained()
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    old.gate.set()
    assert (await client.answer())[0][:12] == b"HTTP/1.1 200"
    await asyncio.wait_for(draining, DEADLINE_S)
    await old.close()
