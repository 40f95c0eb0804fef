"""Messages of workers, as the hub takes them in."""

import asyncio
import time
from math import inf
from unittest.mock import Mock

import pytest
import zmq.asyncio

from coordinator.core import hub as hub_module
from coordinator.core.contract import SequenceRequest
from coordinator.core.hub import Hub
from coordinator.core.observer import Observer
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers import membership
from coordinator.record.redis_link import Damage
from telemetry.metrics import Metrics
from tests.coordinator.kept import kept
from tests.coordinator.site import DEADLINE_S, EXPORT, FAST, Site
from transport.wire.messages import (
    PROTOCOL,
    Decode,
    FromWorker,
    Generate,
    Heartbeat,
    Hello,
    PeerJoined,
    PeerLeft,
    PeerTested,
    Prefill,
    Prefilled,
    TokenOut,
    Tokens,
)
from transport.wire.offers import Offer, PrefixesChanged
from transport.wire.reports import WorkerGauges
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.session import JoinRefused
from transport.wire.token_ids import packed


def introductions(channel: Mock) -> list[tuple[str, str]]:
    """Which worker was told of which peer since the last time."""
    sent = [call.args for call in channel.send.call_args_list]
    channel.send.reset_mock()
    return [(to, m.instance) for to, m in sent if isinstance(m, PeerJoined)]


async def test_peers_are_introduced_once_for_each_time_a_worker_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However slow the machine, no welcome of this test was lost.
    monkeypatch.setattr(membership, "ANSWERED_S", inf)
    channel = Mock()
    observer = Observer(
        Metrics("m"), Mock(num_unwritten=0, dropped=0, connected=True, damage=Damage()), "c1"
    )
    hub = Hub(channel, observer, "c1", FAST, PlacementLimits())

    handle = hub._inbox.handle
    hellos = {
        name: Hello(name, role, "m", "cpu", 1, 128, 8, EXPORT)
        for name, role in (("d-1", "decode"), ("d-2", "decode"), ("p-1", "prefill"))
    }
    handle("d-1", hellos["d-1"])
    handle("d-2", hellos["d-2"])
    for _ in range(5):
        handle("p-1", hellos["p-1"])
    assert introductions(channel) == [
        ("d-1", "d-2"), ("d-2", "d-1"), ("d-1", "p-1"), ("d-2", "p-1"),
    ]  # fmt: skip
    for _ in range(5):
        handle("d-1", hellos["d-1"])
    assert introductions(channel) == []
    for name in hellos:
        handle(name, Heartbeat(WorkerGauges(8, 8)))
        handle(name, hellos[name])
    assert introductions(channel) == [
        ("d-2", "d-1"), ("d-1", "d-2"), ("d-1", "p-1"),
        ("d-2", "p-1"), ("d-1", "d-2"), ("d-2", "d-1"),
        ("d-1", "p-1"), ("d-2", "p-1"),
    ], "each joined again, with none of the others forgotten"  # fmt: skip


async def test_the_speed_of_a_peer_that_has_left_is_not_shown(site: Site) -> None:
    prefill, decode = site.join("p-1", "prefill"), site.join("d-1", "decode")
    await asyncio.to_thread(prefill.session.join, DEADLINE_S)
    await asyncio.to_thread(decode.hear, PeerJoined)
    prefill.session.leave()
    await asyncio.to_thread(decode.hear, PeerLeft)
    decode.session.send(PeerTested("p-1", 85_000_000, 0.00025))
    decode.session.leave(draining=True)
    async with asyncio.timeout(DEADLINE_S):
        while not site.hub.status().workers[0].draining:
            await asyncio.to_thread(decode.session.receive, 0.05)
    assert "selftest_bytes_per_second{" not in site.text


async def test_pairs_for_kept_prefixes_tell_their_speed_until_one_of_them_leaves(
    site: Site,
) -> None:
    keeper, puller = site.join("b-1", "colocated"), site.join("b-2", "colocated")
    await asyncio.to_thread(keeper.session.join, DEADLINE_S)
    keeper.session.send(PrefixesChanged(()))
    await asyncio.to_thread(puller.hear, PeerJoined)
    puller.session.send(PeerTested("b-1", 85_000_000, 0.00025))
    series = 'baton_prefix_cache_selftest_bytes_per_second{keeper="b-1",puller="b-2"} '
    async with asyncio.timeout(DEADLINE_S):
        while series not in site.text:
            await asyncio.to_thread(puller.session.receive, 0.05)
    assert float(site.text.partition(series)[2].split()[0]) == pytest.approx(340e9)
    keeper.session.leave()
    await asyncio.to_thread(puller.hear, PeerLeft)
    assert series not in site.text


async def test_malformed_frames_are_counted_and_end_no_stream(site: Site) -> None:
    both = site.join("b-1", "colocated")
    await asyncio.to_thread(both.session.join, DEADLINE_S)
    stream = site.hub.submit(SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4)))
    order = await asyncio.to_thread(both.hear, Generate)
    context = zmq.asyncio.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.IDENTITY, b"stranger")
    stranger.connect(site.channel.endpoint)
    no_utf8 = b"\x82\xa4type\xa7goodbye\xa5unfit\xa1\xff"
    for frames in ([PROTOCOL.encode(), no_utf8], [b"one"], [PROTOCOL.encode(), b"\x91" * 9_999]):
        await stranger.send_multipart(frames)
        assert b"refused" in (await asyncio.wait_for(stranger.recv_multipart(), DEADLINE_S))[1]
    both.session.send(Prefilled(TokenOut("r", order.attempt, 0, 7), None, 1.0, 2.0))
    async with asyncio.timeout(DEADLINE_S):
        assert (await anext(stream)).token_id == 7
    assert 'baton_stale_messages_dropped_total{message="MalformedMessage"} 3.0' in site.text
    stream.cancel()
    stranger.close(linger=0)
    context.term()


async def test_waiting_messages_keep_nothing_else_waiting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = turns = 0
    taken = asyncio.Event()

    def handle(instance: str, message: FromWorker) -> None:
        nonlocal handled
        handled += 1
        until = time.monotonic() + hub_module.TURN_S / 2
        while time.monotonic() < until:
            pass
        if handled == 50:
            taken.set()

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not taken.is_set():
            loop.call_soon(turn)

    loop = asyncio.get_running_loop()
    worker = site.join("b-1", "colocated")
    monkeypatch.setattr(site.hub._inbox, "handle", handle)
    for _ in range(50):
        worker.channel.send(Heartbeat(WorkerGauges(8, 8)))
    turn()
    async with asyncio.timeout(DEADLINE_S):
        await taken.wait()
    assert turns >= 20, "two messages fill a turn"


async def test_an_offer_that_cannot_be_is_refused(site: Site) -> None:
    prefill, decode = site.join("p-1", "prefill"), site.join("d-1", "decode")
    await asyncio.to_thread(prefill.session.join, DEADLINE_S)
    await asyncio.to_thread(decode.hear, PeerJoined)
    decode.session.send(PeerTested("p-1", 85_000_000, 0.00025))
    stream = site.hub.submit(SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4)))
    order = await asyncio.to_thread(prefill.hear, Prefill)
    token = TokenOut("r", order.attempt, 0, 7)
    prefill.session.send(Prefilled(token, Offer("p-1", (0, 1), 0, 1, 2), 1.0, 2.0))
    with pytest.raises(JoinRefused, match="an offer of 2 pages, not 1"):
        await asyncio.to_thread(prefill.hear, Decode)
    assert site.hub.status().running == 1, "another prefill worker computes it"
    stream.cancel()


async def test_a_kept_prefix_that_cannot_be_is_refused(site: Site) -> None:
    prefill, decode = site.join("p-1", "prefill"), site.join("d-1", "decode")
    await asyncio.to_thread(prefill.session.join, DEADLINE_S)
    await asyncio.to_thread(decode.hear, PeerJoined)
    decode.session.send(PrefixesChanged((kept(range(20), "d-1"),)))
    joined = await asyncio.to_thread(prefill.hear, PeerJoined)
    assert joined.instance == "d-1"
    decode.session.send(PrefixesChanged((kept(range(20), "p-1"),)))
    with pytest.raises(JoinRefused, match="an offer of p-1's memory"):
        await asyncio.to_thread(decode.hear, Decode)


def test_status_tells_how_many_tokens_a_second_a_worker_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel, now, metrics = Mock(), 50.0, Metrics("m")
    for module in ("hub", "inbox"):
        monkeypatch.setattr(f"coordinator.core.{module}.time", Mock(monotonic=lambda: now))
    observer = Observer(
        metrics, Mock(num_unwritten=0, dropped=0, connected=True, damage=Damage()), "c1"
    )
    hub = Hub(channel, observer, "c1", FAST, PlacementLimits())
    hub._inbox.handle("b-1", Hello("b-1", "colocated", "m", "cpu", 1, 128, 8, EXPORT))
    hub.submit(SequenceRequest("r", packed(range(9)), SamplingParams(), StopRule(40)))
    hub._inbox.handle("b-1", Prefilled(TokenOut("r", 1, 0, 7), None, 0.0, 0.1))
    hub._inbox.handle("b-1", Tokens(tuple(TokenOut("r", 1, n, 7) for n in range(1, 10))))
    assert b"baton_step_tokens_sum 9.0" in metrics.render(), "one step gave them"
    assert b"baton_step_tokens_count 1.0" in metrics.render()
    now += 1.0
    (worker,) = hub.status().workers
    assert (worker.prompt_tokens_per_s, worker.output_tokens_per_s) == (9 / 5, 10 / 5)
    now += 5.0
    (worker,) = hub.status().workers
    assert (worker.prompt_tokens_per_s, worker.output_tokens_per_s) == (0.0, 0.0)
