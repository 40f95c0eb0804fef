"""Colocated workers give the texts of the handoff, token for token, whatever dies."""

import asyncio
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import ending_well
from tests.e2e.records import outcomes, settled
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended

NUM_WORKERS = 2
NUM_TOKENS = 100
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "heartbeat": 0.25,
    "dead_after": 3.0,
    "page_size": 16,
    "num_pages": 400,  # short enough for some to give way
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
    return [stream(baton, number) for number in range(16)]


@pytest.fixture(scope="module")
def expected() -> list[Seen]:
    """What split pools answer, through the handoff: all together, and some of them alone."""

    async def ask(split: Stack) -> list[Seen]:
        together = [found.seen for found in await all_ended(streams(split))]
        for number in range(4):
            assert (await stream(split, number).ended()).seen == together[number]
        return together

    with ending_well(Stack(served("per_expert"), **SETTINGS | {"verify_handoff": True})) as split:
        seen = asyncio.run(ask(split))
    assert {finish for _, _, finish in seen} == {"length"}
    return seen


@pytest.fixture(scope="module")
def baton() -> Iterator[Stack]:
    """One stack for the tests here, which come in this order: the last one ends it."""
    stack = Stack(
        served("per_expert"), "--role", "colocated", "--workers", str(NUM_WORKERS), **SETTINGS
    )
    try:
        yield stack.start()
    finally:
        stack.close()


async def test_the_texts_of_the_handoff_also_with_a_worker_killed(
    baton: Stack, expected: list[Seen]
) -> None:
    assert f"({NUM_WORKERS} colocated, cpu, " in baton.text
    undisturbed = await all_ended(streams(baton))
    assert [s.seen for s in undisturbed] == expected
    await baton.idle(NUM_WORKERS)
    disturbed = streams(baton)
    for running in disturbed:
        await running.reaches(10)
    baton.kill("colocated-1")
    await all_ended(disturbed)
    assert [s.error for s in disturbed] == [None] * len(disturbed)
    assert [s.seen for s in disturbed] == expected
    await baton.idle(NUM_WORKERS)
    with baton.redis() as server:
        records = await settled(server, outcomes([*undisturbed, *disturbed]))
    assert sum(int(records[s.http_id]["attempt"]) > 1 for s in disturbed) >= 4


async def test_a_worker_drains_and_the_whole_drains(baton: Stack, expected: list[Seen]) -> None:
    one_leaves = streams(baton)
    for running in one_leaves:
        await running.reaches(10)
    leaving = baton.pids()["colocated-2"]
    baton.kill("colocated-2", signal.SIGTERM)
    await all_ended(one_leaves)
    assert [s.seen for s in one_leaves] == expected
    await baton.idle(NUM_WORKERS)
    assert baton.pids()["colocated-2"] != leaving
    all_leave = streams(baton)
    for running in all_leave:
        await running.reaches(10)
    assert await asyncio.to_thread(baton.stop) == 0
    await all_ended(all_leave)
    assert [s.seen for s in all_leave] == expected
