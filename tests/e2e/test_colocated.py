"""Colocated workers give the texts of the handoff, token for token, whatever dies."""

import asyncio
import random
import resource
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cut import Cut
from tests.e2e.limits import as_before, no_more
from tests.e2e.records import outcomes, settled
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended, some_reach

NUM_WORKERS = 2
NUM_TOKENS = 140
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "heartbeat": 0.25,
    "dead_after": 3.0,
    "page_size": 16,
    "num_pages": 600,  # short enough for some to give way
    "max_batch_tokens": 256,
    "max_tokens_beside_decode": 64,
    "poison": True,
}


def stream(baton: Stack, number: int) -> Stream:
    """The long stream of this number, greedy or sampled, every third one with penalties, the same
    every time."""
    length = [5, 64, 200, 17, 330, 90, 128, 1][number % 8]
    draw = random.Random(number)
    prompt = [draw.randrange(260) for _ in range(length)]
    temperature = float(number % 2)
    penalties = {"repetition_penalty": 1.5, "presence_penalty": 0.5} if number % 3 == 2 else {}
    return Stream(
        baton.url, prompt,
        max_tokens=NUM_TOKENS, seed=number, temperature=temperature, **penalties,
    )  # fmt: skip


def streams(baton: Stack) -> list[Stream]:
    return [stream(baton, number) for number in range(10)]


@pytest.fixture(scope="module")
def split_texts() -> list[Seen]:
    """What split workers answer, through the handoff; filled by the first test that asks."""
    return []


@pytest.fixture
async def expected(baton: Stack, split_texts: list[Seen], texts: list[Seen]) -> list[Seen]:
    """All together, and some of them alone."""
    if not split_texts:
        split_texts += [found.seen for found in await all_ended(streams(baton))]
        texts[:] = split_texts
        for number in range(4):
            assert (await stream(baton, number).ended()).seen == split_texts[number]
        assert {finish for _, _, finish in split_texts} == {"length"}
    return split_texts


@pytest.fixture(scope="module")
def colocated() -> Iterator[Stack]:
    """One stack for the tests here, which come in this order: the last one ends it."""
    stack = Stack(
        served("per_expert"), "--role", "colocated", "--workers", str(NUM_WORKERS), **SETTINGS
    )
    try:
        yield stack.start()
    finally:
        stack.close()


async def test_the_texts_of_the_handoff_also_with_a_worker_killed(
    colocated: Stack, expected: list[Seen]
) -> None:
    assert f"({NUM_WORKERS} colocated, cpu, " in colocated.text
    undisturbed = await all_ended(streams(colocated))
    assert [s.seen for s in undisturbed] == expected
    await colocated.idle(NUM_WORKERS)
    disturbed = streams(colocated)
    await some_reach(disturbed, 4, num_tokens=10)
    colocated.kill("colocated-1")
    await all_ended(disturbed)
    assert [s.error for s in disturbed] == [None] * len(disturbed)
    assert [s.seen for s in disturbed] == expected
    await colocated.idle(NUM_WORKERS)
    with colocated.redis() as server:
        records = await settled(server, outcomes([*undisturbed, *disturbed]))
    assert sum(int(records[s.http_id]["attempt"]) > 1 for s in disturbed) >= 3


async def same(colocated: Stack, found: list[Stream], expected: list[Seen]) -> int:
    """Wait for the end; nothing may differ. Returns how many requests were retried."""
    await all_ended(found)
    assert [s.error for s in found] == [None] * len(found)
    assert [s.seen for s in found] == expected
    await colocated.idle(NUM_WORKERS, 60.0)
    with colocated.redis() as server:
        records = await settled(server, outcomes(found))
    return sum(int(records[s.http_id]["attempt"]) > 1 for s in found)


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_NOFILE])
async def test_a_worker_gets_no_more_memory_or_descriptors(
    colocated: Stack, expected: list[Seen], limit: int
) -> None:
    """Whether it goes on with what it has or ends, streams are the same."""
    disturbed = streams(colocated)
    await some_reach(disturbed, 2, num_tokens=1)
    pid = colocated.pids()["colocated-1"]
    before = no_more(pid, limit)
    await same(colocated, disturbed, expected)
    await same(colocated, streams(colocated), expected)
    as_before(pid, limit, before)


async def test_a_worker_is_cut_off_from_the_coordinator(
    colocated: Stack, expected: list[Seen]
) -> None:
    cut = Cut(colocated.endpoint)
    await cut.take_over()
    try:
        since = len(colocated.lines)
        colocated.kill("colocated-1")
        await asyncio.to_thread(colocated.until, "^colocated-1: ready", 40.0, since)
        await colocated.idle(NUM_WORKERS, 40.0)
        before = colocated.pids()["colocated-1"]
        disturbed = streams(colocated)
        await some_reach(disturbed, 4, num_tokens=10)
        cut.open.clear()
        since = len(colocated.lines)
        fenced = r"fenced colocated-\w+: silent"
        await asyncio.to_thread(colocated.until, fenced, 20.0, since)
        await all_ended(disturbed)
        cut.give_back()
        cut.open.set()
        assert await same(colocated, disturbed, expected) >= 3
        assert colocated.pids()["colocated-1"] != before
    finally:
        cut.close()


async def test_a_worker_drains_and_the_whole_drains(colocated: Stack, expected: list[Seen]) -> None:
    one_leaves = streams(colocated)
    await some_reach(one_leaves, 4, num_tokens=10)
    leaving = colocated.pids()["colocated-2"]
    colocated.kill("colocated-2", signal.SIGTERM)
    await all_ended(one_leaves)
    assert [s.seen for s in one_leaves] == expected
    await colocated.idle(NUM_WORKERS)
    assert (await colocated.moved())["moved"] >= 1, "its streams went on at the other worker"
    assert (await colocated.status())["moves_last_minute"] >= 1
    assert colocated.pids()["colocated-2"] != leaving
    all_leave = streams(colocated)
    await some_reach(all_leave, 4, num_tokens=10)
    assert await asyncio.to_thread(colocated.stop) == 0
    await all_ended(all_leave)
    assert [s.seen for s in all_leave] == expected
