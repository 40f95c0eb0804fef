"""The typed channel over a real ZeroMQ socket, and what it does with bytes it cannot trust."""

import asyncio
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from transport.channel import CoordinatorChannel, WorkerChannel
from transport.errors import MalformedMessage, ProtocolMismatch
from transport.messages import (
    PROTOCOL,
    Alive,
    Cancel,
    FirstStep,
    Goodbye,
    TokenOut,
    Tokens,
    encode,
)


@pytest.fixture
async def coordinator(tmp_path: Path):
    channel = CoordinatorChannel(f"ipc://{tmp_path}/c.sock")
    yield channel
    channel.close()


async def receive(channel: CoordinatorChannel):
    return await asyncio.wait_for(channel.receive(), 5)


async def test_messages_cross_in_order_both_ways(coordinator: CoordinatorChannel) -> None:
    worker = WorkerChannel(coordinator.endpoint, "decode-1")
    tokens = Tokens((TokenOut("r", 1, 0, 42),), (FirstStep("r", 1, 1.5),))
    worker.send(tokens)
    worker.send(Goodbye(draining=True))
    assert await receive(coordinator) == ("decode-1", tokens)
    assert await receive(coordinator) == ("decode-1", Goodbye(draining=True))
    assert coordinator.send("decode-1", Alive("c"))
    assert coordinator.send("decode-1", Cancel("r", 1))
    got = []
    while len(got) < 2:
        got += await asyncio.to_thread(worker.receive, 5.0)
    assert got == [Alive("c"), Cancel("r", 1)]
    worker.close()


async def test_a_worker_that_is_not_there_is_reported(coordinator: CoordinatorChannel) -> None:
    assert not coordinator.send("nobody", Alive("c"))


async def test_another_protocol_version_is_named_by_both_ends(
    coordinator: CoordinatorChannel,
) -> None:
    worker = WorkerChannel(coordinator.endpoint, "old", protocol="baton/0")
    worker.send(Goodbye())
    instance, error = await receive(coordinator)
    assert instance == "old"
    assert isinstance(error, ProtocolMismatch)
    assert (error.ours, error.theirs) == (PROTOCOL, "baton/0")
    coordinator.send("old", Alive("c"))
    with pytest.raises(ProtocolMismatch, match=rf"baton/0.*{PROTOCOL}"):
        await asyncio.to_thread(worker.receive, 5.0)
    worker.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b"only one frame"],
        [PROTOCOL.encode(), b"\xff not msgpack"],
        [PROTOCOL.encode(), encode(Alive("a coordinator's message"))],
        [PROTOCOL.encode(), encode(Goodbye()) + b"trailing"],
        [PROTOCOL.encode(), b"", b"three frames"],
    ],
)
async def test_garbage_is_an_error_value_and_the_channel_goes_on(
    coordinator: CoordinatorChannel, frames: list[bytes]
) -> None:
    context = zmq.asyncio.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.IDENTITY, b"stranger")
    stranger.connect(coordinator.endpoint)
    await stranger.send_multipart(frames)
    instance, error = await receive(coordinator)
    assert instance == "stranger"
    assert isinstance(error, MalformedMessage)
    await stranger.send_multipart([PROTOCOL.encode(), encode(Goodbye())])
    assert (await receive(coordinator))[1] == Goodbye()
    stranger.close(linger=0)
    context.term()


async def test_an_endpoint_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no-such-folder"):
        CoordinatorChannel(f"ipc://{tmp_path}/no-such-folder/c.sock")
