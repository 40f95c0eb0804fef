"""A burst of connections is taken in at once and served evenly."""

import asyncio
import errno
import socket
from collections.abc import Callable
from itertools import pairwise

import pytest
import uvloop

from coordinator.http.server import acceptor
from coordinator.http.server.acceptor import ACCEPTED_PER_TURN, Acceptor
from coordinator.http.server.connections import Connections


class Echo(asyncio.Protocol):
    """Counts in ``made`` at which turn of the loop it was made, and answers."""

    def __init__(self, made: list[int], turn: Callable[[], int]) -> None:
        made.append(turn())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


async def burst(count: int) -> list[int]:
    """Connect ``count`` clients while the loop stands still; the turn in which each was let in."""
    turns = 0
    running = True

    def turn() -> None:
        nonlocal turns
        turns += 1
        if running:
            loop.call_soon(turn)

    made: list[int] = []
    loop = asyncio.get_running_loop()
    listener = listening()
    clients = [socket.create_connection(listener.getsockname()) for _ in range(count)]
    accepting = Acceptor(listener, lambda: Echo(made, lambda: turns), Connections(1024))
    accepting.open()
    turn()
    try:
        for client in clients:
            client.setblocking(False)
            await loop.sock_sendall(client, b"x")
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 10.0) == b"x"
    finally:
        running = False
        accepting.close()
        for client in clients:
            client.close()
    return made


def check(made: list[int]) -> None:
    assert len(made) == 200
    most = max(made.count(turn) for turn in made)
    assert most <= ACCEPTED_PER_TURN, f"{most} were let in within one turn"


async def test_a_burst_is_let_in_a_few_a_turn() -> None:
    check(await burst(200))


def test_so_it_is_with_uvloop() -> None:
    check(uvloop.run(burst(200)))


async def test_without_a_free_file_it_pauses_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.05)
    loop, refused_at = asyncio.get_running_loop(), []

    class Exhausted(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if len(refused_at) < 3:
                refused_at.append(loop.time())
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    plain = listening()
    listener = Exhausted(fileno=plain.detach())
    accepting = Acceptor(listener, lambda: Echo([], lambda: 0), Connections(1024))
    accepting.open()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"x")
    assert await asyncio.wait_for(reader.readexactly(1), 10.0) == b"x"
    assert len(refused_at) == 3
    assert all(later - earlier > 0.04 for earlier, later in pairwise(refused_at))
    writer.close()
    accepting.close()


async def test_one_that_has_gone_while_it_waited_holds_up_no_other() -> None:
    made: list[int] = []

    def make() -> asyncio.Protocol:
        made.append(1)
        if len(made) == 1:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return Echo(made, lambda: 0)

    listener, connections = listening(), Connections(1024)
    clients = [
        socket.create_connection(listener.getsockname()) for _ in range(2 * ACCEPTED_PER_TURN)
    ]
    accepting = Acceptor(listener, make, connections)
    accepting.open()
    for client in clients[1:]:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(client, b"x")
        async with asyncio.timeout(10.0):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b"x"
    assert connections.num_open == len(clients) - 1
    accepting.close()
    for client in clients:
        client.close()


async def test_closing_ends_the_tasks_that_wait() -> None:
    listener = listening()
    clients = [socket.create_connection(listener.getsockname()) for _ in range(ACCEPTED_PER_TURN)]
    made: list[int] = []
    accepting = Acceptor(listener, lambda: Echo(made, lambda: 0), Connections(1024))
    accepting.open()
    accepting._accept()
    accepting.close()
    for client in clients:
        client.settimeout(5.0)
        assert client.recv(1) == b""
        client.close()
    assert made == []


class Told(asyncio.Protocol):
    """Notes that its connection has ended, without which a server would wait for it."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set()


async def closed_while_it_is_made() -> None:
    listener, ended = listening(), asyncio.Event()
    client = socket.create_connection(listener.getsockname())
    accepting = Acceptor(listener, lambda: Told(ended), Connections(1024))
    accepting.open()
    accepting._accept()
    await asyncio.sleep(0)  # its task has begun
    accepting.close()
    async with asyncio.timeout(5.0):
        await ended.wait()
    client.close()


async def test_closing_ends_a_connection_whose_protocol_is_being_made() -> None:
    await closed_while_it_is_made()


def test_so_it_does_with_uvloop() -> None:
    uvloop.run(closed_while_it_is_made())
