"""What the coordinator says of connections that fail the handshake."""

import socket
from collections.abc import AsyncIterator, Callable

import pytest

from tests.e2e.waiting import eventually
from transport.wire import strangers
from transport.wire.channel import CoordinatorChannel, WorkerChannel
from transport.wire.channel_keys import channel_keys
from transport.wire.strangers import TELL_EVERY_S

OURS, THEIRS = channel_keys("o" * 64), channel_keys("t" * 64)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def channel() -> AsyncIterator[CoordinatorChannel]:
    channel = CoordinatorChannel("tcp://127.0.0.1:*", keys=OURS)
    yield channel
    channel.close()


async def until(condition: Callable[[], object]) -> None:
    async def holds() -> None:
        assert condition()

    await eventually(holds, "it")


def port_scan(channel: CoordinatorChannel) -> None:
    """A connection that says nothing and ends."""
    port = int(channel.endpoint.rsplit(":", 1)[1])
    socket.create_connection(("127.0.0.1", port)).close()


async def test_a_worker_with_another_secret_is_one_line_a_minute(
    channel: CoordinatorChannel, caplog: pytest.LogCaptureFixture
) -> None:
    watch, clock = channel._strangers, Clock()
    watch._clock = clock
    worker = WorkerChannel(channel.endpoint, "decode-1", keys=THEIRS)

    def told() -> int:
        channel.tell_of_strangers()
        return len(caplog.records)

    await until(lambda: told() == 1)
    assert "BATON_CHANNEL_SECRET differs" in caplog.text
    assert caplog.records[0].connections >= 1
    await until(lambda: told() and watch._num_refused >= 2)  # it tries again and again
    assert told() == 1
    clock.now += TELL_EVERY_S
    assert told() == 2
    assert caplog.records[1].connections >= 2
    worker.close()


async def test_the_right_secret_is_no_stranger(
    channel: CoordinatorChannel, caplog: pytest.LogCaptureFixture
) -> None:
    worker = WorkerChannel(channel.endpoint, "decode-1", keys=OURS)
    await until(lambda: worker._handshakes.connected())
    channel.tell_of_strangers()
    assert caplog.records == []
    worker.close()


async def test_a_flood_is_not_counted_to_its_end(
    channel: CoordinatorChannel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strangers, "_MOST_A_LOOK", 3)
    for _ in range(20):
        port_scan(channel)
    await until(lambda: channel.tell_of_strangers() or caplog.records)
    assert caplog.records[0].connections <= 3
    port_scan(channel)
    watch = channel._strangers
    await until(lambda: channel.tell_of_strangers() or watch._num_refused)  # it goes on to watch
