"""Joining, heartbeats and noticing a dead coordinator, with a scripted channel and clock."""

from itertools import pairwise

import pytest

from transport.wire.errors import DeadlineExceeded
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import Alive, Cancel, Heartbeat, Hello, Refused, Targets, Welcome
from transport.wire.reports import WorkerGauges
from transport.wire.session import CLOSED_S, LOST, MAX_UNANSWERED, JoinRefused, Session

LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)
HELLO = Hello(
    "p-1", "prefill", "m", "cpu", 1, 64, 4, MemoryExport("shm", "h", 1, LAYOUT, PoolSize(4, 4))
)
GAUGES = WorkerGauges(free_pages=4, free_state_slots=4)


class ScriptedChannel:
    endpoint = "ipc://scripted"
    malformed_dropped = 0
    connected = False
    closed_s = 0.0

    def __init__(self) -> None:
        self.now, self.sent, self.answers = 0.0, [], []
        self.renewed_at: list[float] = []

    def renew(self) -> None:
        self.renewed_at.append(self.now)

    def clock(self) -> float:
        return self.now

    def send(self, message) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float, *, awake_s: float = 0.0) -> list:
        if self.answers:
            return [self.answers.pop(0)]
        self.now += max(timeout_s, 0.01)
        return []


@pytest.fixture
def channel() -> ScriptedChannel:
    return ScriptedChannel()


@pytest.fixture
def joined(channel: ScriptedChannel) -> Session:
    session = Session(channel, HELLO, channel.clock)
    channel.answers = [Welcome("c-1", 1.0, 5.0, Targets(2.0, 0.05))]
    session.join(10.0)
    return session


def test_join_says_hello_until_welcomed(channel: ScriptedChannel, joined: Session) -> None:
    assert joined.welcomed
    assert channel.sent == [HELLO]


def test_work_that_comes_with_the_welcome_is_kept(
    channel: ScriptedChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [[Welcome("c-1", 1.0, 5.0, Targets(2.0, 0.05)), Cancel("r", 1)], [Cancel("r", 2)]]
    monkeypatch.setattr(channel, "receive", lambda timeout_s: batches.pop(0))
    session = Session(channel, HELLO, channel.clock)
    session.join(10.0)
    assert session.receive(60.0) == [Cancel("r", 1), Cancel("r", 2)]


def test_join_without_an_answer_names_who_waited_for_what(channel: ScriptedChannel) -> None:
    with pytest.raises(DeadlineExceeded, match=r"p-1 waited .* welcome .* ipc://scripted"):
        Session(channel, HELLO, channel.clock).join(4.0)
    assert channel.sent.count(HELLO) >= 3


def test_a_refusal_carries_its_reason(channel: ScriptedChannel) -> None:
    channel.answers = [Refused("model mismatch")]
    with pytest.raises(JoinRefused, match="model mismatch"):
        Session(channel, HELLO, channel.clock).join(4.0)


def test_heartbeats_go_out_on_time_and_only_then(channel: ScriptedChannel, joined: Session) -> None:
    for _ in range(50):
        channel.now += 0.1
        joined.beat(lambda: GAUGES, lambda: (("r", 1),))
    beats = [m for m in channel.sent if isinstance(m, Heartbeat)]
    assert len(beats) == 5
    assert beats[0].held == (("r", 1),)


def test_waiting_never_outlasts_the_next_heartbeat(
    channel: ScriptedChannel, joined: Session
) -> None:
    joined.beat(lambda: GAUGES, lambda: ())
    before = channel.now
    joined.receive(60.0)
    assert channel.now - before <= 1.0


def test_silence_is_lost_once_then_hello_again(channel: ScriptedChannel, joined: Session) -> None:
    channel.now += 5.1
    assert joined.receive(0.0) == [LOST]
    assert not joined.welcomed
    channel.sent.clear()
    channel.answers = [Cancel("r", 1)]
    assert joined.receive(0.0) == [], "work of a coordinator that has not welcomed us"
    assert channel.sent == [HELLO]


@pytest.mark.parametrize(
    ("name", "logged"),
    [
        ("c-2", "c-2 took over from c-1"),
        ("", "a coordinator that does not know this worker took over from c-1"),
    ],
)
def test_another_coordinator_is_lost_too_and_the_log_names_both(
    channel: ScriptedChannel, joined: Session, caplog: pytest.LogCaptureFixture, name: str,
    logged: str,
) -> None:  # fmt: skip
    caplog.set_level("INFO")
    channel.answers = [Alive(name)]
    assert joined.receive(0.0) == [LOST]
    channel.answers = [Welcome("c-2", 1.0, 5.0, Targets(2.0, 0.05))]
    joined.receive(0.0)
    assert caplog.messages == [logged, "joined coordinator c-2 after c-1"]


def test_the_same_coordinator_alive_keeps_the_session(
    channel: ScriptedChannel, joined: Session
) -> None:
    for _ in range(10):
        channel.now += 3.0
        channel.answers = [Alive("c-1")]
        assert joined.receive(0.0) == []
    assert joined.welcomed


def test_how_long_messages_may_have_lain_unseen(channel: ScriptedChannel, joined: Session) -> None:
    joined.beat(lambda: GAUGES, lambda: ())
    joined.receive(0.0)
    looked_at = channel.now
    channel.now += 0.3  # a step is computed
    channel.answers = [Cancel("r", 1)]
    joined.receive(0.0)
    assert joined.in_socket_s == pytest.approx(channel.now - looked_at)
    channel.now += 0.3

    def wait(timeout_s: float, *, awake_s: float = 0.0) -> list:
        return [Cancel("r", 2)] if timeout_s > 0 else []

    channel.receive = wait
    joined.receive(0.2)
    assert joined.in_socket_s == 0.0, "it was waited for"


def test_silence_renews_the_connection_without_limit_while_no_coordinator_is_there(
    channel: ScriptedChannel, joined: Session
) -> None:
    for _ in range(100):
        channel.now += 1.0
        joined.receive(0.0)
    pauses_s = [after - before for before, after in pairwise([0.0, *channel.renewed_at])]
    assert len(pauses_s) >= 15
    assert all(5.0 <= pause_s <= 6.2 for pause_s in pauses_s)
    channel.answers = [Welcome("c-2", 1.0, 5.0, Targets(2.0, 0.05))]
    joined.receive(0.0)
    assert joined.welcomed


def test_a_coordinator_that_is_connected_and_never_answers_ends_the_worker(
    channel: ScriptedChannel, joined: Session
) -> None:
    channel.connected = True

    def listen() -> None:
        for _ in range(100):
            channel.now += 1.0
            joined.receive(0.0)

    with pytest.raises(DeadlineExceeded, match=r"p-1 waited .* welcome .* 3 connections"):
        listen()
    assert channel.now < 5.0 + (MAX_UNANSWERED + 1) * 6.0


def test_an_answer_begins_the_count_of_silent_connections_anew(
    channel: ScriptedChannel, joined: Session
) -> None:
    channel.connected = True
    for number in range(20):
        channel.now += 5.5
        channel.answers = [] if number % 3 else [Alive("c-1")]
        joined.receive(0.0)


def test_a_connection_that_stays_closed_is_lost_long_before_silence_is(
    channel: ScriptedChannel, joined: Session
) -> None:
    channel.closed_s = CLOSED_S
    assert joined.receive(0.0) == [], "the coordinator may be back at once"
    channel.closed_s = CLOSED_S + 0.1
    assert joined.receive(0.0) == [LOST]
    assert channel.now < 1.0
    channel.sent.clear()
    assert joined.receive(0.0) == []
    assert (channel.sent, channel.renewed_at) == ([HELLO], [])
