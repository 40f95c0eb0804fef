"""The typed channel over a real ZeroMQ socket, and what it does with bytes it cannot trust."""

import asyncio
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from tests.e2e.waiting import eventually
from tests.transport.received import received
from transport.wire.channel import CoordinatorChannel, WorkerChannel
from transport.wire.errors import MalformedMessage, ProtocolMismatch
from transport.wire.messages import (
    PROTOCOL,
    Alive,
    Cancel,
    Goodbye,
    TokenOut,
    Tokens,
    encode,
)
from transport.wire.reports import FirstStep


@pytest.fixture
async def coordinator(tmp_path: Path):
    channel = CoordinatorChannel(f"ipc://{tmp_path}/c.sock")
    yield channel
    channel.close()


async def test_messages_cross_in_order_both_ways(coordinator: CoordinatorChannel) -> None:
    worker = WorkerChannel(coordinator.endpoint, "decode-1")
    tokens = Tokens((TokenOut("r", 1, 0, 42),), (FirstStep("r", 1, 1.5),))
    worker.send(tokens)
    worker.send(Goodbye(draining=True))
    assert await received(coordinator) == ("decode-1", tokens)
    assert await received(coordinator) == ("decode-1", Goodbye(draining=True))
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
    instance, error = await received(coordinator)
    assert instance == "old"
    assert isinstance(error, ProtocolMismatch)
    assert (error.ours, error.theirs) == (PROTOCOL, "baton/0")
    coordinator.send("old", Alive("c"))
    with pytest.raises(ProtocolMismatch, match=rf"baton/0.*{PROTOCOL}"):
        await asyncio.to_thread(worker.receive, 5.0)
    worker.close()


async def test_a_wait_ends_when_it_is_woken_once(coordinator: CoordinatorChannel) -> None:
    worker = WorkerChannel(coordinator.endpoint, "decode-1")
    began = time.monotonic()
    waiting = asyncio.create_task(asyncio.to_thread(worker.receive, 60.0))
    await asyncio.sleep(0)
    worker.wake()  # before the wait, or in it
    assert await asyncio.wait_for(waiting, 5.0) == []
    assert time.monotonic() - began < 5.0
    began = time.monotonic()
    assert await asyncio.to_thread(worker.receive, 0.2) == []
    assert time.monotonic() - began >= 0.19, "the next wait is a whole one"
    worker.close()
    worker.wake()  # a second signal, while the process ends


async def test_a_wait_without_sleep_is_bounded(coordinator: CoordinatorChannel) -> None:
    worker = WorkerChannel(coordinator.endpoint, "decode-1")

    def wait() -> tuple[list, float, float]:
        began, used = time.monotonic(), time.thread_time()
        messages = worker.receive(0.3, awake_s=0.05)
        return messages, time.monotonic() - began, time.thread_time() - used

    messages, took_s, used_s = await asyncio.to_thread(wait)
    assert messages == []
    assert took_s >= 0.29, "the rest is slept"
    assert used_s < 0.15
    worker.send(Goodbye())
    await received(coordinator)
    waiting = asyncio.create_task(asyncio.to_thread(worker.receive, 5.0, awake_s=5.0))
    assert coordinator.send("decode-1", Alive("c"))
    assert await asyncio.wait_for(waiting, 4.0) == [Alive("c")]
    worker.close()


async def test_what_was_sent_last_arrives(coordinator: CoordinatorChannel) -> None:
    worker = WorkerChannel(coordinator.endpoint, "decode-1")
    worker.send(Goodbye(draining=True))
    assert await received(coordinator) == ("decode-1", Goodbye(draining=True))
    for number in range(500):
        worker.send(Goodbye(unfit=str(number)))
    await asyncio.to_thread(worker.close)
    for number in range(500):
        assert await received(coordinator) == ("decode-1", Goodbye(unfit=str(number)))


async def test_closing_waits_for_nobody_who_is_gone(tmp_path: Path) -> None:
    coordinator = CoordinatorChannel(f"ipc://{tmp_path}/c.sock")
    worker = WorkerChannel(coordinator.endpoint, "decode-1")
    worker.send(Goodbye(draining=True))
    await received(coordinator)
    coordinator.close()

    async def noticed() -> None:
        assert not worker._handshakes.connected()

    await eventually(noticed, "the connection is closed")
    worker.send(Goodbye())
    lookup = threading.Event()
    end = worker._context.term

    def end_after_the_lookup() -> None:
        lookup.wait(60.0)
        end()

    worker._context.term = end_after_the_lookup
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < 5.0
    lookup.set()


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
    instance, error = await received(coordinator)
    assert instance == "stranger"
    assert isinstance(error, MalformedMessage)
    await stranger.send_multipart([PROTOCOL.encode(), encode(Goodbye())])
    assert (await received(coordinator))[1] == Goodbye()
    stranger.close(linger=0)
    context.term()


async def test_an_endpoint_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no-such-folder"):
        CoordinatorChannel(f"ipc://{tmp_path}/no-such-folder/c.sock")


@pytest.mark.parametrize("sent_to", ["decode-1", "nobody"])
async def test_nothing_that_comes_while_the_coordinator_sends_is_left_lying(
    coordinator: CoordinatorChannel, sent_to: str
) -> None:
    """Sending, too, looks at the socket, and then its descriptor announces nothing any more."""
    worker = WorkerChannel(coordinator.endpoint, "decode-1")
    came: asyncio.Queue[object] = asyncio.Queue()
    delivering = asyncio.create_task(
        coordinator.deliver(lambda _, message: came.put_nowait(message), turn_s=0.001)
    )
    worker.send(Goodbye())
    async with asyncio.timeout(10.0):
        for number in range(200):
            await came.get()
            worker.send(Goodbye(unfit=str(number)))
            threading.Event().wait(0.0005)  # it is there before the coordinator sends
            assert coordinator.send(sent_to, Alive("c")) == (sent_to == "decode-1")
    delivering.cancel()
    worker.close()


async def test_what_a_handler_raises_ends_the_delivery(coordinator: CoordinatorChannel) -> None:
    worker = WorkerChannel(coordinator.endpoint, "decode-1")
    worker.send(Goodbye())

    def fail(instance: str, message: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(5.0):
            await coordinator.deliver(fail, turn_s=1.0)
    worker.close()


@pytest.mark.parametrize("identity", [b"decode-1", b"decode-1." + b"0" * 32])
async def test_a_connection_with_a_workers_name_takes_nothing_over(
    coordinator: CoordinatorChannel, identity: bytes
) -> None:
    """Whether it says nothing and ends, or speaks in the worker's name."""
    worker = WorkerChannel(coordinator.endpoint, "decode-1")
    worker.send(Goodbye())
    assert await received(coordinator) == ("decode-1", Goodbye())
    context = zmq.asyncio.Context()
    for speaks in (False, True):
        intruder = context.socket(zmq.DEALER)
        intruder.setsockopt(zmq.IDENTITY, identity)
        intruder.connect(coordinator.endpoint)
        if speaks:
            await intruder.send_multipart([PROTOCOL.encode(), encode(Goodbye(unfit="all"))])
            name, error = await received(coordinator)
            assert name == "a second connection of decode-1"
            assert isinstance(error, MalformedMessage)
            assert not coordinator.send(name, Alive("c"))
        else:
            assert await intruder.poll(300) == 0
        assert coordinator.send("decode-1", Alive("c"))
        assert await asyncio.to_thread(worker.receive, 5.0) == [Alive("c")]
        assert await intruder.poll(0) == 0, "it hears nothing"
        intruder.close(linger=0)
    worker.send(Goodbye(draining=True))
    assert await received(coordinator) == ("decode-1", Goodbye(draining=True))
    worker.close()
    context.term()


async def test_a_name_that_is_not_kept_is_free_again(coordinator: CoordinatorChannel) -> None:
    first = WorkerChannel(coordinator.endpoint, "decode-1")
    first.send(Goodbye())
    await received(coordinator)
    coordinator.keep(["decode-1", "decode-2"])
    second = WorkerChannel(coordinator.endpoint, "decode-1")
    second.send(Goodbye())
    assert isinstance((await received(coordinator))[1], MalformedMessage)
    coordinator.keep([])
    assert not coordinator.send("decode-1", Alive("c"))
    second.send(Goodbye())
    assert await received(coordinator) == ("decode-1", Goodbye())
    first.close()
    second.close()


async def test_a_renewed_connection_is_the_workers(coordinator: CoordinatorChannel) -> None:
    worker = WorkerChannel(coordinator.endpoint, "decode-1")
    for number in range(20):
        worker.send(Goodbye(unfit=str(number)))
        assert await received(coordinator) == ("decode-1", Goodbye(unfit=str(number)))
        worker.renew()
        worker.send(Goodbye())
        assert await received(coordinator) == ("decode-1", Goodbye())
        assert worker.connected
        assert coordinator.send("decode-1", Alive("c"))
        assert await asyncio.to_thread(worker.receive, 5.0) == [Alive("c")]
    worker.close()


async def test_how_long_a_connection_has_been_closed(tmp_path: Path) -> None:
    endpoint, now = f"ipc://{tmp_path}/c.sock", 10.0
    coordinator = CoordinatorChannel(endpoint)
    worker = WorkerChannel(endpoint, "decode-1", clock=lambda: now)
    assert worker.closed_s == 0.0
    worker.send(Goodbye())
    await received(coordinator)

    async def is_now(connected: bool) -> None:
        assert worker.connected == connected

    await eventually(partial(is_now, True), "connected")
    coordinator.close()
    await eventually(partial(is_now, False), "closed")
    now += 3.0
    assert worker.closed_s == 3.0
    coordinator = CoordinatorChannel(endpoint)
    await eventually(partial(is_now, True), "connected again")
    assert worker.closed_s == 0.0
    worker.close()
    coordinator.close()
