"""Pools that follow the load: prompts that wait get more workers, and every text is as before."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.conftest import ending_well
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, all_ended
from tests.e2e.test_colocated import SETTINGS, streams
from tests.e2e.waiting import eventually

NUM_PROMPTS, PROMPT_LEN = 64, 300


@pytest.fixture(scope="module")
def pools() -> Iterator[Stack]:
    targets = ["--target-ttft-ms", "50", "--target-tpot-ms", "10000"]
    arguments = ["--prefill", "1", "--decode", "3", "--pools", "auto", *targets]
    stack = Stack(served("per_expert"), *arguments, verify_handoff=True, **SETTINGS)
    with ending_well(stack):
        yield stack


async def burst(stack: Stack) -> None:
    """Prompts with one token of output each, all at once."""
    limits = httpx.Limits(max_connections=NUM_PROMPTS)
    async with httpx.AsyncClient(base_url=stack.url, timeout=120.0, limits=limits) as http:
        bodies = [
            {"prompt": [(i + j) % 200 + 1 for j in range(PROMPT_LEN)], "max_tokens": 1}
            for i in range(NUM_PROMPTS)
        ]
        answers = await asyncio.gather(*(http.post("/v1/completions", json=b) for b in bodies))
    assert {answer.status_code for answer in answers} == {200}


async def num_computing(stack: Stack) -> int:
    """Number of workers that compute prompts: all, if none is a prefill worker."""
    workers = (await stack.status())["workers"]
    return sum(worker["role"] == "prefill" for worker in workers) or len(workers)


async def test_prompts_that_wait_get_workers_and_no_token_changes(
    pools: Stack, texts: list[Seen]
) -> None:
    if not texts:
        texts += [stream.seen for stream in await all_ended(streams(pools))]
    disturbed = streams(pools)
    bursts = asyncio.create_task(_bursts(pools))
    try:
        await eventually(lambda: _grown(pools), "prompts got workers", deadline_s=60.0)
    finally:
        bursts.cancel()
    await all_ended(disturbed)
    assert [stream.seen for stream in disturbed] == texts
    assert "prefill: " in (await pools.status())["pools_why"]
    await pools.idle(4)


async def _bursts(stack: Stack) -> None:
    while True:
        await burst(stack)


async def _grown(stack: Stack) -> None:
    assert await num_computing(stack) > 1


async def test_they_cannot_be_changed_by_hand(pools: Stack) -> None:
    async with httpx.AsyncClient(base_url=pools.url) as http:
        answer = await http.post("/v1/pools", json={"prefill": 2, "decode": 2})
    assert answer.status_code == 400
    assert "they follow the load (--pools auto)" in answer.json()["error"]["message"]
