"""Workers that the coordinator cannot hear for a while, and workers of another version."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator.core.contract import SequenceRequest
from coordinator.core.hub import HubSettings
from tests.coordinator.site import DEADLINE_S, EXPORT, Site, Worker
from tests.cut import Cut
from tests.e2e.waiting import eventually
from transport.wire.channel import WorkerChannel
from transport.wire.errors import ProtocolMismatch
from transport.wire.messages import Generate, Hello, Prefilled, TokenOut
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.session import LOST, JoinRefused
from transport.wire.token_ids import packed

QUICK = HubSettings(heartbeat_s=0.05, dead_after_s=0.6)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site(QUICK)
    yield site
    await site.close()


async def test_a_worker_that_is_cut_off_is_not_charged_to_its_request_and_learns_of_it(
    site: Site,
) -> None:
    """Its request goes on elsewhere, and is not held to have ended a worker."""
    cut = Cut(site.channel.endpoint)
    far = Worker(await cut.listen(), "b-1", "colocated")
    site.workers.append(far)
    await asyncio.to_thread(far.session.join, DEADLINE_S)
    stream = site.hub.submit(SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4)))
    await asyncio.to_thread(far.hear, Generate)
    request = site.hub._lifecycle.requests["r"]
    cut.open.clear()

    async def fenced() -> None:
        assert site.hub.status().workers == ()

    await eventually(fenced, "that the silent worker is fenced")
    assert (request.attempt, request.deaths) == (2, 1), "it may have died, as far as is known"
    near = site.join("b-2", "colocated")
    await asyncio.to_thread(near.session.join, DEADLINE_S)
    order = await asyncio.to_thread(near.hear, Generate)
    near.session.send(Prefilled(TokenOut("r", order.attempt, 0, 7), None, 1.0, 2.0))
    async with asyncio.timeout(DEADLINE_S):
        assert (await anext(stream)).token_id == 7

    def listen() -> list[object]:
        heard: list[object] = []
        while LOST not in heard:
            heard += far.session.receive(0.1)
        return heard

    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.to_thread(listen) == [LOST]
    cut.open.set()

    def say_hello() -> None:
        while True:
            far.session.receive(0.1)

    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(JoinRefused, match="fenced: silent"):
            await asyncio.to_thread(say_hello)
    assert request.deaths == 0, "it lives"
    stream.cancel()
    cut.close()


async def test_a_worker_of_another_version_is_refused_by_name_beside_one_that_serves(
    site: Site,
) -> None:
    """As in a restart of one process after another."""
    ours = site.join("b-1", "colocated")
    await asyncio.to_thread(ours.session.join, DEADLINE_S)
    stream = site.hub.submit(SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(4)))
    order = await asyncio.to_thread(ours.hear, Generate)
    other = WorkerChannel(site.channel.endpoint, "b-2", protocol="baton/0")
    other.send(Hello("b-2", "colocated", "m", "cpu", 1, 128, 8, EXPORT))
    with pytest.raises(ProtocolMismatch, match="baton/0"):
        await asyncio.to_thread(other.receive, DEADLINE_S)
    other.close()
    ours.session.send(Prefilled(TokenOut("r", order.attempt, 0, 7), None, 1.0, 2.0))
    async with asyncio.timeout(DEADLINE_S):
        assert (await anext(stream)).token_id == 7
    assert [worker.instance for worker in site.hub.status().workers] == ["b-1"]
    stream.cancel()
