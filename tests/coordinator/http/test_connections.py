"""A limit of connections below the open files: idle ones go first, and workers still get in."""

import asyncio
import json
import math
import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.http.server.connections import MIN_SILENT_S, Connections
from coordinator.http.server.open_files import SPARE_FILES
from tests.coordinator.served import serving
from transport.wire.channel import WorkerChannel
from transport.wire.messages import Alive, Goodbye

ROOT = Path(__file__).resolve().parents[3]
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Fake:
    def __init__(self, name: str, evicted: list[str]) -> None:
        self.name, self._evicted = name, evicted
        self.unread = False

    def has_unread(self) -> bool:
        return self.unread

    def evict(self) -> None:
        self._evicted.append(self.name)


def test_the_longest_idle_goes_first_and_the_busy_stay() -> None:
    evicted: list[str] = []
    connections = Connections(3, min_silent_s=0.0)
    a, b, c = (Fake(name, evicted) for name in "abc")
    for fake in (a, b, c):
        assert connections.can_accept()
        connections.opened()
        connections.mark_idle(fake)
    connections.mark_busy(a)
    connections.mark_idle(a)
    connections.mark_busy(b)
    assert connections.can_accept()
    assert evicted == [], "before one has come"
    connections.opened()
    assert evicted == ["c"]
    connections.mark_idle(c)  # what it says while it closes does not count
    connections.opened()
    assert evicted == ["c", "a"]
    assert not connections.can_accept(), "b is busy, and two are new"
    room: list[bool] = []
    connections.on_room = lambda: room.append(connections.can_accept())
    connections.closed(c)
    connections.closed(a)
    assert room == [], "these two were made room for already"
    connections.closed()
    assert room == [True]
    assert connections.num_open == 2


def test_one_that_becomes_idle_makes_room() -> None:
    evicted: list[str] = []
    connections = Connections(1, min_silent_s=0.0)
    connections.opened()
    assert not connections.can_accept()
    room: list[bool] = []
    connections.on_room = lambda: room.append(connections.can_accept())
    connections.mark_idle(Fake("a", evicted))
    assert (room, evicted) == ([True], [])
    connections.opened()
    assert evicted == ["a"]


def test_only_a_connection_that_has_been_silent_for_long_enough_is_closed() -> None:
    evicted: list[str] = []
    now = 0.0
    connections = Connections(3, min_silent_s=1.0, clock=lambda: now)
    a, b, c = (Fake(name, evicted) for name in "abc")
    for fake in (a, b, c):
        connections.opened()
        connections.mark_idle(fake)
        now += 0.25
    assert not connections.can_accept()
    assert connections.next_eviction_in_s() == 0.25
    connections.mark_receiving(a)
    assert connections.next_eviction_in_s() == 0.5
    now += 0.5
    b.unread = True  # its bytes wait in the kernel
    assert not connections.can_accept()
    now += 0.25
    assert connections.can_accept()
    connections.opened()
    assert evicted == ["c"]
    now += 10.0
    assert not connections.can_accept()
    assert connections.next_eviction_in_s() == math.inf


def test_a_limit_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="connections: a limit of 0"):
        Connections(0)


@asynccontextmanager
async def served(
    limit: int, gate: asyncio.Event, begun: asyncio.Semaphore, min_silent_s: float = MIN_SILENT_S
) -> AsyncIterator[int]:
    """A server of ``limit`` connections that answers once the gate is open, and counts in
    ``begun``."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.release()
        await gate.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(app, max_connections=limit, min_silent_s=min_silent_s) as (_, port):
        try:
            yield port
        finally:
            gate.set()


async def connect(port: int, said: bytes = b"") -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    return reader, writer


async def all_of(count: int, begun: asyncio.Semaphore) -> None:
    async with asyncio.timeout(5.0):
        for _ in range(count):
            await begun.acquire()


async def answer(client: Client, timeout_s: float = 5.0) -> bytes:
    async with asyncio.timeout(timeout_s):
        return await client[0].readuntil(b"ok")


async def test_idle_connections_keep_no_client_out() -> None:
    gate, begun = asyncio.Event(), asyncio.Semaphore(0)
    async with served(4, gate, begun, min_silent_s=0.1) as port:
        busy = [await connect(port, REQUEST) for _ in range(2)]
        await all_of(2, begun)
        idle = [await connect(port) for _ in range(20)]
        gate.set()
        assert (await answer(await connect(port, REQUEST))).startswith(b"HTTP/1.1 200")
        for client in busy:
            assert (await answer(client)).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(5.0):
            for reader, _ in idle[:17]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""


async def test_a_burst_above_the_limit_loses_no_request() -> None:
    """All have connected before the first sends its request, which may take seconds."""
    gate, begun = asyncio.Event(), asyncio.Semaphore(0)
    gate.set()
    async with served(10, gate, begun, min_silent_s=30.0) as port:
        clients = [await connect(port) for _ in range(200)]
        for _, writer in clients:
            writer.write(REQUEST)
        for client in clients:
            assert (await answer(client, 30.0)).startswith(b"HTTP/1.1 200")


async def test_a_part_of_a_head_keeps_its_connection() -> None:
    gate, begun = asyncio.Event(), asyncio.Semaphore(0)
    gate.set()
    async with served(1, gate, begun, min_silent_s=0.05) as port:
        first = await connect(port, REQUEST[:10])
        second = await connect(port, REQUEST)
        with pytest.raises(TimeoutError):
            await answer(second, 0.3)
        first[1].write(REQUEST[10:])
        assert (await answer(first)).startswith(b"HTTP/1.1 200")
        assert (await answer(second)).startswith(b"HTTP/1.1 200")


async def test_while_others_wait_a_connection_ends_with_its_answer() -> None:
    gate, begun = asyncio.Event(), asyncio.Semaphore(0)
    async with served(1, gate, begun, min_silent_s=30.0) as port:
        first = await connect(port, REQUEST[:10])
        second = await connect(port, REQUEST)
        with pytest.raises(TimeoutError):
            await answer(second, 0.1)
        first[1].write(REQUEST[10:])
        gate.set()
        assert b"connection: close" in await answer(first)
        assert b"connection: close" not in await answer(second)


async def test_a_request_behind_another_of_its_connection_keeps_it_busy() -> None:
    begun, gates = asyncio.Semaphore(0), [asyncio.Event(), asyncio.Event(), asyncio.Event()]
    waiting = iter(gates)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.release()
        await next(waiting).wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(app, max_connections=1) as (_, port):
        first = await connect(port, 2 * REQUEST)
        await all_of(1, begun)
        gates[0].set()
        await answer(first)
        await all_of(1, begun)
        second = await connect(port, REQUEST)
        gates[1].set()
        gates[2].set()
        assert (await answer(first)).startswith(b"HTTP/1.1 200")
        assert (await answer(second)).startswith(b"HTTP/1.1 200")


async def test_an_idle_client_that_takes_no_answer_keeps_no_descriptor() -> None:
    length, sent = 8 * 2**20, asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = bytes(length) if scope["path"] == "/long" else b"ok"
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        sent.set()

    async with serving(app, max_connections=1) as (server, port):
        with socket.create_connection(("127.0.0.1", port)) as unread:
            unread.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.wait_for(sent.wait(), 5.0)
            (closed,) = server.server_state.connections
            second = await connect(port, REQUEST)
            assert (await answer(second)).startswith(b"HTTP/1.1 200")
            assert closed not in server.server_state.connections


async def test_where_all_are_busy_the_next_waits() -> None:
    gate, begun = asyncio.Event(), asyncio.Semaphore(0)
    async with served(2, gate, begun) as port:
        clients = [await connect(port, REQUEST) for _ in range(2)]
        await all_of(2, begun)
        clients.append(await connect(port, REQUEST))
        gate.set()
        for client in clients:
            assert (await answer(client)).startswith(b"HTTP/1.1 200")


SERVER = """
import asyncio, json, resource, socket, sys
from coordinator.http.server.connections import Connections
from coordinator.http.http_settings import HttpSettings
from coordinator.http.server.open_files import allow_open_files
from coordinator.http.server.http_server import HttpServer
from transport.wire.channel import CoordinatorChannel
from transport.wire.messages import Alive

async def app(scope, receive, send):
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})

async def main():
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    connections = Connections(allow_open_files("max_open", 50), min_silent_s=0.1)
    channel = CoordinatorChannel("ipc://" + sys.argv[1])
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    asyncio.ensure_future(HttpServer(app, listener, HttpSettings("tiny"), connections).serve())
    print(json.dumps([channel.endpoint, listener.getsockname()[1], connections.limit]), flush=True)
    await channel.deliver(lambda instance, _: channel.send(instance, Alive("c")), turn_s=1.0)

asyncio.run(main())
"""


async def test_workers_get_in_whatever_clients_hold(tmp_path: Path) -> None:
    """libzmq aborts in the accept of a Unix socket where there is no descriptor."""
    limit, most = SPARE_FILES + 50, 50
    command = [sys.executable, "-c", SERVER, str(tmp_path / "c.sock"), str(limit)]
    server = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert server.stdout is not None
    idle: list[socket.socket] = []
    with more_files(limit + 400):
        try:
            ready = await asyncio.wait_for(server.stdout.readline(), 30.0)
            endpoint, port, allowed = json.loads(ready)
            assert allowed == most
            for _ in range(limit + 50):
                idle.append(socket.create_connection(("127.0.0.1", port)))  # noqa: PERF401
            for number in range(3):  # each connects anew
                worker = WorkerChannel(endpoint, f"w-{number}")
                worker.send(Goodbye())
                assert await asyncio.to_thread(worker.receive, 5.0) == [Alive("c")]
                worker.close()
            assert (await answer(await connect(port, REQUEST))).startswith(b"HTTP/1.1 200")
            assert server.returncode is None
            assert len(os.listdir(f"/proc/{server.pid}/fd")) < most + SPARE_FILES // 2
        finally:
            server.kill()
            await server.wait()
            for client in idle:
                client.close()


@contextmanager
def more_files(count: int) -> Iterator[None]:
    """This process may have so many open, as far as it may at all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
