"""What the coordinator says of connections that fail the handshake."""

import socket
from collections.abc import AsyncIterator, Callable

import pytest

from tests.e2e.waiting import eventually
from transport.wire import unverified_peers
from transport.wire.channel import CoordinatorChannel, WorkerChannel
from transport.wire.channel_keys import channel_keys
from transport.wire.unverified_peers import LOG_EVERY_S

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
    watch, clock = channel._unverified, Clock()
    watch._clock = clock
    worker = WorkerChannel(channel.endpoint, "decode-1", keys=THEIRS)

    def told() -> int:
        channel.log_unverified()
        return len(caplog.records)

    await until(lambda: told() == 1)
    assert "BATON_CHANNEL_SECRET differs" in caplog.text
    assert caplog.records[0].connections >= 1
    await until(lambda: told() and watch._num_refused >= 2)  # it tries again and again
    assert told() == 1
    clock.now += LOG_EVERY_S
    assert told() == 2
    assert caplog.records[1].connections >= 2
    worker.close()


async def test_a_worker_with_the_right_secret_is_not_counted(
    channel: CoordinatorChannel, caplog: pytest.LogCaptureFixture
) -> None:
    worker = WorkerChannel(channel.endpoint, "decode-1", keys=OURS)
    await until(lambda: worker._handshakes.connected())
    channel.log_unverified()
    assert caplog.records == []
    worker.close()


async def test_a_flood_is_not_counted_to_its_end(
    channel: CoordinatorChannel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unverified_peers, "_MAX_EVENTS_PER_LOOK", 3)
    for _ in range(20):
        port_scan(channel)
    await until(lambda: channel.log_unverified() or caplog.records)
    assert caplog.records[0].connections <= 3
    port_scan(channel)
    watch = channel._unverified
    await until(lambda: channel.log_unverified() or watch._num_refused)  # it goes on to watch
