"""The channel with keys, over real sockets: who knows the secret gets through, nobody else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from tests.transport.received import received
from transport.wire.channel import CoordinatorChannel, WorkerChannel
from transport.wire.channel_keys import ChannelKeys, channel_keys
from transport.wire.errors import ChannelRefused
from transport.wire.messages import PROTOCOL, Alive, Goodbye, encode
from transport.wire.secret_setting import CHANNEL_SECRET


def keys_of(secret: str) -> ChannelKeys:
    keys = channel_keys(secret)
    assert keys is not None
    return keys


OURS, OTHER = keys_of("our secret " * 4), keys_of("another one " * 4)
NO_MERCY = 0.0


@pytest.fixture(params=["ipc", "tcp"])
async def coordinator(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[CoordinatorChannel]:
    endpoint = f"ipc://{tmp_path}/c.sock" if request.param == "ipc" else "tcp://127.0.0.1:*"
    channel = CoordinatorChannel(endpoint, keys=OURS)
    yield channel
    channel.close()


async def passes(coordinator: CoordinatorChannel, name: str = "w") -> None:
    """A worker with the secret is heard next, and hears."""
    worker = WorkerChannel(coordinator.endpoint, name, keys=OURS)
    try:
        worker.send(Goodbye())
        assert await received(coordinator) == (name, Goodbye())
        assert coordinator.send(name, Alive("c"))
        assert await asyncio.to_thread(worker.receive, 5.0) == [Alive("c")]
    finally:
        worker.close()


async def refused(worker: WorkerChannel) -> str:
    def listen() -> None:
        worker.send(Goodbye())
        for _ in range(100):
            assert worker.receive(0.1) == []

    try:
        with pytest.raises(ChannelRefused) as refusal:
            await asyncio.to_thread(listen)
    finally:
        worker.close()
    return str(refusal.value)


async def test_who_knows_the_secret_gets_through(coordinator: CoordinatorChannel) -> None:
    await passes(coordinator, "w1")
    await passes(coordinator, "w2")


@pytest.mark.parametrize(
    "keys",
    [None, OTHER, ChannelKeys(OURS.coordinator, OTHER.worker)],
    ids=["no secret", "another secret", "only the coordinator's public key"],
)
async def test_a_stranger_is_told_so_and_never_heard(
    coordinator: CoordinatorChannel, keys: ChannelKeys | None
) -> None:
    stranger = WorkerChannel(coordinator.endpoint, "w", keys=keys, refused_after_s=NO_MERCY)
    message = await refused(stranger)
    assert CHANNEL_SECRET in message
    assert coordinator.endpoint in message
    assert not coordinator.send("w", Alive("c"))
    await passes(coordinator, "heard-next")


async def test_a_refused_worker_does_not_wait_for_ever_to_send() -> None:
    """A coordinator that wants keys and says so, to a worker that has none. A real one hangs up
    as well, often before the worker has read why: then nothing is final (see the next tests)."""
    wants_keys = (
        b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\1" + bytes(31)
    )

    async def say_so(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wants_keys)  # ZMTP's greeting: signature, version, mechanism, as-server
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_so, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    worker = WorkerChannel(f"tcp://127.0.0.1:{port}", "w")

    def talk() -> None:
        for _ in range(100):
            worker.send(Goodbye())
            assert worker._socket.poll(50) == 0  # what is known to be refused is not asked about

    try:
        with pytest.raises(ChannelRefused, match=CHANNEL_SECRET):
            await asyncio.wait_for(asyncio.to_thread(talk), 10)
    finally:
        worker.close()
        server.close()


async def test_a_worker_with_a_secret_trusts_no_open_coordinator(tmp_path: Path) -> None:
    channel = CoordinatorChannel(f"ipc://{tmp_path}/c.sock")
    try:
        worker = WorkerChannel(channel.endpoint, "w", keys=OURS, refused_after_s=NO_MERCY)
        assert CHANNEL_SECRET in await refused(worker)
        assert not channel.send("w", Alive("c"))
    finally:
        channel.close()


async def test_failures_are_borne_for_a_while(coordinator: CoordinatorChannel) -> None:
    """A coordinator that goes while it is greeted looks just like one with another secret."""
    first, compared = 0.0, (0.0, 4.9, 5.0)
    times = iter((first, *compared))
    worker = WorkerChannel(
        coordinator.endpoint, "w", keys=OTHER, refused_after_s=5.0, clock=lambda: next(times, 5.0)
    )
    assert CHANNEL_SECRET in await refused(worker)
    assert list(times) == []


async def test_a_coordinator_that_goes_and_stays_away_refuses_nobody() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        server.close()

    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    worker = WorkerChannel(f"tcp://127.0.0.1:{port}", "w", keys=OURS, refused_after_s=0.2)
    try:
        await asyncio.wait_for(server.wait_closed(), 5)
        for _ in range(10):
            assert await asyncio.to_thread(worker.receive, 0.1) == []
    finally:
        worker.close()


async def test_what_crosses_cannot_be_read(tmp_path: Path) -> None:
    """A tap between the two sees no protocol name and no payload."""
    channel = CoordinatorChannel("tcp://127.0.0.1:*", keys=OURS)
    port = int(channel.endpoint.rpartition(":")[2])
    seen = bytearray()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            seen.extend(data)
            sink.write(data)
        sink.close()

    async def tap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    server = await asyncio.start_server(tap, "127.0.0.1", 0)
    port_of_tap = server.sockets[0].getsockname()[1]
    worker = WorkerChannel(f"tcp://127.0.0.1:{port_of_tap}", "w", keys=OURS)
    try:
        worker.send(Goodbye())
        assert await received(channel) == ("w", Goodbye())
        channel.send("w", Alive("a prompt nobody may read"))
        assert await asyncio.to_thread(worker.receive, 5.0) == [Alive("a prompt nobody may read")]
    finally:
        worker.close()
        channel.close()
        server.close()
    assert b"CURVE" in seen
    assert b"nobody may read" not in seen
    assert PROTOCOL.encode() not in seen


async def test_raw_bytes_do_not_stop_the_channel(coordinator: CoordinatorChannel) -> None:
    if coordinator.endpoint.startswith("ipc"):
        connection = asyncio.open_unix_connection(coordinator.endpoint.removeprefix("ipc://"))
    else:
        port = int(coordinator.endpoint.rpartition(":")[2])
        connection = asyncio.open_connection("127.0.0.1", port)
    reader, writer = await connection
    writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(200))
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionResetError):  # how it hangs up is its own affair
            assert PROTOCOL.encode() not in await reader.read()
    writer.close()
    await passes(coordinator)


async def test_a_dealer_of_no_program_of_ours_gets_nothing(coordinator: CoordinatorChannel) -> None:
    context = zmq.asyncio.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.IDENTITY, b"prefill-1")
    stranger.connect(coordinator.endpoint)
    try:
        with contextlib.suppress(zmq.Again):  # it may have been refused already
            await stranger.send_multipart([PROTOCOL.encode(), encode(Goodbye())], zmq.NOBLOCK)
        await passes(coordinator)
        assert not await stranger.poll(0)
        assert not coordinator.send("prefill-1", Alive("c"))
    finally:
        stranger.close(linger=0)
        context.term()
