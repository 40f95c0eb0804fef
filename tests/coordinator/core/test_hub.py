"""The hub over real sockets: joins, handoffs, losses, drains and bugs."""

import asyncio
import time
from unittest.mock import Mock

import pytest
import zmq
import zmq.asyncio

from coordinator.core.contract import GenerationFailed, Overloaded, SequenceRequest
from coordinator.core.hub import Hub, HubSettings
from coordinator.core.observer import Observer
from coordinator.core.request import Request
from coordinator.core.requests.faults import _Charge
from coordinator.core.settings import PlacementLimits
from coordinator.record.redis_link import Damage
from telemetry.metrics import Metrics
from tests.coordinator.site import DEADLINE_S, EXPORT, FAST, Site, Worker
from transport.wire.channel import WorkerChannel
from transport.wire.messages import (
    Cancel,
    Decode,
    Generate,
    Hello,
    PeerJoined,
    PeerLeft,
    PeerTested,
    Prefill,
    Prefilled,
    Refused,
    TokenOut,
)
from transport.wire.offers import Offer
from transport.wire.reports import WorkerGauges
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.session import JoinRefused
from transport.wire.token_ids import packed


async def test_a_handoff_is_placed_once_its_pair_has_passed(site: Site) -> None:
    prefill, decode = site.join("p-1", "prefill"), site.join("d-1", "decode")
    await asyncio.to_thread(prefill.session.join, DEADLINE_S)
    joined = await asyncio.to_thread(decode.hear, PeerJoined)
    assert joined.instance == "p-1"
    stream = site.hub.submit(SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4)))
    order = await asyncio.to_thread(prefill.hear, Prefill)
    token = TokenOut("r", order.attempt, 0, 7)
    prefill.session.send(Prefilled(token, Offer("p-1", (0,), 0, 1, 2), 1.0, 2.0))
    decode.session.send(PeerTested("p-1", 85_000_000, 0.00025))
    assert (await asyncio.to_thread(decode.hear, Decode)).offer.instance == "p-1"
    label = 'baton_handoff_selftest_bytes_per_second{decode="d-1",prefill="p-1"} '
    speed = site.metrics.render().decode().partition(label)[2].split()[0]
    assert float(speed) == pytest.approx(340e9)
    assert site.hub.num_output("r") == 1, "the first token counts before the next state"
    assert site.hub.num_output("another") is None
    stream.cancel()


async def test_a_decode_worker_that_can_pull_from_no_prefill_worker_is_refused_with_the_reason(
    site: Site,
) -> None:
    prefill, decode = site.join("p-1", "prefill"), site.join("d-1", "decode")
    await asyncio.to_thread(prefill.session.join, DEADLINE_S)
    await asyncio.to_thread(decode.hear, PeerJoined)
    decode.session.send(PeerTested("p-1", problem="3 bytes arrived wrong; see nvidia-smi"))
    refused = asyncio.to_thread(decode.hear, Decode)
    beating = asyncio.create_task(asyncio.to_thread(_beat, prefill, 1.0))
    with pytest.raises(JoinRefused, match="3 bytes arrived wrong; see nvidia-smi"):
        await refused
    await beating
    assert [worker.instance for worker in site.hub.status().workers] == ["p-1"]
    assert site.hub.status().problems == ("no live decode worker",)
    text = site.metrics.render().decode()
    assert 'baton_workers_lost_total{reason="refused",role="decode"} 1.0' in text
    assert "selftest_bytes_per_second{" not in text


async def test_without_a_prefill_worker_prompts_are_served_and_the_loss_is_a_problem_shown(
    site: Site,
) -> None:
    prefill, decode = site.join("p-1", "prefill"), site.join("d-1", "decode")
    await asyncio.to_thread(prefill.session.join, DEADLINE_S)
    await asyncio.to_thread(decode.hear, PeerJoined)
    assert (site.hub.status().ready, site.hub.status().problems) == (True, ())
    prefill.session.leave()
    await asyncio.to_thread(decode.hear, PeerLeft)
    status = site.hub.status()
    assert status.ready
    assert status.problems == ("no live prefill worker: decode workers compute prompts",)
    site.hub.submit(SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4)))
    assert (await asyncio.to_thread(decode.hear, Generate)).request_id == "r"
    decode.session.leave(draining=True)

    async with asyncio.timeout(DEADLINE_S):
        while site.hub.status().ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert site.hub.status().problems == ("no live prefill worker", "no live decode worker")


async def test_requests_wait_while_the_only_worker_of_a_role_is_gone(site: Site) -> None:
    """They are refused only before the first workers have joined."""
    request = SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4))
    with pytest.raises(Overloaded, match="no live prefill worker; no live decode worker"):
        site.hub.submit(request)
    prefill, decode = site.join("p-1", "prefill"), site.join("d-1", "decode")
    await asyncio.to_thread(prefill.session.join, DEADLINE_S)
    await asyncio.to_thread(decode.session.join, DEADLINE_S)
    for worker in (prefill, decode):
        worker.session.leave()
    async with asyncio.timeout(DEADLINE_S):
        while site.hub.status().workers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    site.hub.submit(request)
    assert (site.hub.status().ready, site.hub.status().queued) == (False, 1)
    successor = site.join("p-2", "prefill")
    await asyncio.to_thread(successor.session.join, DEADLINE_S)
    assert (await asyncio.to_thread(successor.hear, Prefill)).request_id == "r"


async def test_what_is_open_when_a_drain_ends_fails_and_is_not_sent_to_a_worker_first(
    site: Site,
) -> None:
    prefill, decode = site.join("p-1", "prefill"), site.join("d-1", "decode")
    await asyncio.to_thread(prefill.session.join, DEADLINE_S)
    await asyncio.to_thread(decode.session.join, DEADLINE_S)
    for n in range(600):
        site.hub.submit(SequenceRequest(f"r{n}", packed((1, 2)), SamplingParams(), StopRule(4)))
    placed = site.hub.status().running
    await site.hub.drain(0.0)
    told: list[object] = []
    while len(told) < 2 * placed:
        told += await asyncio.to_thread(prefill.session.receive, DEADLINE_S)
    assert [type(message) for message in told] == [Prefill] * placed + [Cancel] * placed
    assert site.hub.status().problems == ("the coordinator is shutting down",)
    with pytest.raises(Overloaded, match="draining") as refused:
        site.hub.submit(SequenceRequest("late", packed((1,)), SamplingParams(), StopRule(4)))
    assert refused.value.code == "draining"
    ended = 'baton_requests_total{reason="shutting_down",state="failed"} 600.0'
    assert ended in site.text


async def test_prompts_beyond_the_tokens_that_may_be_held_are_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = site.join("b-1", "colocated")
    await asyncio.to_thread(both.session.join, DEADLINE_S)
    monkeypatch.setattr(site.hub._open_tokens, "max_tokens", 100)
    first = site.hub.submit(SequenceRequest("r", packed(range(60)), SamplingParams(), StopRule(4)))
    second = SequenceRequest("s", packed(range(41)), SamplingParams(), StopRule(4))
    with pytest.raises(Overloaded, match="hold 60 tokens"):
        site.hub.submit(second)
    assert site.hub.status().running == 1
    assert site.hub.status().problems == ()
    first.cancel()
    site.hub.submit(second).cancel()


async def test_a_bug_in_what_one_request_wants_done_ends_that_one(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: Request) -> None:
        assert request.request_id != "bad", "a bug"

    monkeypatch.setattr(site.observer, "token", broken)
    both = site.join("b-1", "colocated")
    await asyncio.to_thread(both.session.join, DEADLINE_S)
    streams = {}
    for name in ("bad", "good"):
        spec = SequenceRequest(
            name, packed((1, 2)), SamplingParams(), StopRule(4), http_id=f"of {name}"
        )
        streams[name] = site.hub.submit(spec)
        order = await asyncio.to_thread(both.hear, Generate)
        token = TokenOut(name, order.attempt, 0, 7)
        both.session.send(Prefilled(token, None, 1.0, 2.0))
    async with asyncio.timeout(DEADLINE_S):
        assert (await anext(streams["bad"])).token_id == 7
        with pytest.raises(GenerationFailed, match="internal error"):
            await anext(streams["bad"])
        assert (await anext(streams["good"])).token_id == 7
    assert await asyncio.to_thread(both.hear, Cancel) == Cancel("bad", 1)
    (logged,) = (r for r in caplog.records if r.levelname == "ERROR")
    assert (logged.http_id, logged.message) == ("of bad", "carrying out Emit")
    streams["good"].cancel()


async def test_an_ended_connection_is_found_without_a_heartbeat() -> None:
    site = Site(HubSettings(heartbeat_s=60.0, dead_after_s=300.0))
    dead, alive = site.join("b-1", "colocated"), site.join("b-2", "colocated")
    for worker in (dead, alive):
        await asyncio.to_thread(worker.session.join, DEADLINE_S)
    request = SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4))
    stream = site.hub.submit(request)
    await asyncio.to_thread(dead.hear, Generate)
    site.workers.remove(dead)
    await asyncio.to_thread(dead.channel.close)  # as the kernel does for a killed process
    order = await asyncio.to_thread(alive.hear, Generate)
    assert order.attempt == 2
    assert [worker.instance for worker in site.hub.status().workers] == ["b-2"]
    stream.cancel()
    await site.close()


async def test_a_bug_in_a_heartbeat_ends_no_stream(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    both = site.join("b-1", "colocated")
    await asyncio.to_thread(both.session.join, DEADLINE_S)
    stream = site.hub.submit(SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4)))
    order = await asyncio.to_thread(both.hear, Generate)
    broken = Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr(site.observer, "tick", broken)
    async with asyncio.timeout(DEADLINE_S):
        while broken.call_count < 3:
            assert await asyncio.to_thread(both.session.receive, 0.05) == []
    both.session.send(Prefilled(TokenOut("r", order.attempt, 0, 7), None, 1.0, 2.0))
    async with asyncio.timeout(DEADLINE_S):
        assert (await anext(stream)).token_id == 7
    assert {r.message for r in caplog.records if r.levelname == "ERROR"} == {
        "heartbeat tick failed"
    }
    stream.cancel()


def _beat(worker: Worker, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        worker.session.receive(0.05)
        worker.session.beat(lambda: WorkerGauges(8, 8), lambda: tuple(worker.held))


async def test_a_worker_whose_probes_all_fail_is_ended_and_counted() -> None:
    channel = Mock()
    metrics = Metrics("m")
    observer = Observer(
        metrics, Mock(num_unwritten=0, dropped=0, connected=True, damage=Damage()), "c1"
    )
    hub = Hub(channel, observer, "c1", FAST, PlacementLimits())
    for name in ("b-1", "b-2"):
        hub._inbox.handle(name, Hello(name, "colocated", "m", "cpu", 1, 128, 8, EXPORT))
    worker = hub._registry.require("b-1")
    breaker, label = worker.breaker, '{instance="b-1",role="colocated"} '
    with hub._lifecycle._outbox:
        for _ in range(3):
            charge = _Charge("not_finite", ("b-1",), (1.0,), 1.0)
            hub._lifecycle._outbox.add(*hub._lifecycle._faults._apply(charge))
    assert "baton_worker_breaker_open" + label + "1.0" in metrics.render().decode()
    faults = 'baton_worker_faults_total{code="not_finite",role="colocated"} 3.0'
    assert faults in metrics.render().decode()
    assert [w.breaker for w in hub.status().workers] == ["open", "closed"]
    while not breaker.hopeless:
        later = time.monotonic() + 1_000.0
        breaker.fault(later, later)
    hub._beat(0.0)
    refused = [c.args[1] for c in channel.send.call_args_list if isinstance(c.args[1], Refused)]
    assert [r.reason for r in refused] == ["5 requests in a row failed as probes"]
    assert [w.instance for w in hub.status().workers] == ["b-2"]
    lost = 'baton_workers_lost_total{reason="refused",role="colocated"} 1.0'
    assert lost in metrics.render().decode()
    assert "baton_worker_breaker_open" + label not in metrics.render().decode()


async def test_a_second_connection_in_a_workers_name_harms_neither_it_nor_its_request(
    site: Site,
) -> None:
    both = site.join("b-1", "colocated")
    await asyncio.to_thread(both.session.join, DEADLINE_S)
    stream = site.hub.submit(SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4)))
    order = await asyncio.to_thread(both.hear, Generate)
    context = zmq.asyncio.Context()
    silent = context.socket(zmq.DEALER)
    silent.setsockopt(zmq.IDENTITY, b"b-1")
    silent.connect(site.channel.endpoint)
    assert await silent.poll(200) == 0
    silent.close(linger=0)
    context.term()
    intruder = WorkerChannel(site.channel.endpoint, "b-1")
    hello = Hello("b-1", "colocated", "m", "cpu", 1, 128, 8, EXPORT)
    intruder.send(hello)
    await asyncio.to_thread(_beat, both, 0.5)
    assert intruder.receive(0.0) == []
    assert [worker.instance for worker in site.hub.status().workers] == ["b-1"]
    both.session.send(Prefilled(TokenOut("r", order.attempt, 0, 7), None, 1.0, 2.0))
    async with asyncio.timeout(DEADLINE_S):
        assert (await anext(stream)).token_id == 7
    assert order.attempt == 1
    stream.cancel()
    intruder.close()
