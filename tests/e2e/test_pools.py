"""Pools that change while streams run: every text as before, whoever does what."""

import asyncio
import signal
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

from deploy.cli import app
from tests.e2e.conftest import ending_well
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended, some_reach
from tests.e2e.test_colocated import SETTINGS, streams
from tests.e2e.waiting import eventually

NUM_WORKERS = 4
LONG = 900


@pytest.fixture(scope="module")
def pools() -> Iterator[Stack]:
    arguments = ["--prefill", "2", "--decode", "2", "--pools", "manual"]
    stack = Stack(served("per_expert"), *arguments, verify_handoff=True, **SETTINGS)
    with ending_well(stack):
        yield stack


async def roles(stack: Stack) -> list[str]:
    return sorted(worker["role"] for worker in (await stack.status())["workers"])


async def scaled(stack: Stack, prefill: int, decode: int) -> httpx.Response:
    async with httpx.AsyncClient(timeout=40.0) as http:
        body = {"prefill": prefill, "decode": decode}
        return await http.post(f"{stack.url}/v1/pools", json=body)


@pytest.fixture
async def expected(pools: Stack, texts: list[Seen]) -> list[Seen]:
    if not texts:
        quiet = streams(pools)
        await all_ended(quiet)
        texts += [stream.seen for stream in quiet]
    return texts


async def test_pools_change_under_streams_and_no_token_does(
    pools: Stack, expected: list[Seen]
) -> None:
    for prefill in (1, 0, 3, 2):
        disturbed = streams(pools)
        await some_reach(disturbed, 4, num_tokens=10)
        answer = await scaled(pools, prefill, NUM_WORKERS - prefill)
        assert answer.status_code == 200, answer.text
        change = answer.json()
        assert change["num_left"] == 0
        names = ["decode"] * (NUM_WORKERS - prefill) + ["prefill"] * prefill
        assert sorted(change["workers"].values()) == names == await roles(pools)
        await all_ended(disturbed)
        assert [stream.seen for stream in disturbed] == expected
        await pools.idle(NUM_WORKERS)
    assert (await pools.moved())["moved"] >= 1


async def test_a_killed_worker_comes_back_to_the_pools_that_were_asked_for(
    pools: Stack, expected: list[Seen]
) -> None:
    assert (await scaled(pools, 1, 3)).status_code == 200
    disturbed = streams(pools)
    await some_reach(disturbed, 4, num_tokens=10)
    pools.kill("decode-1", signal.SIGKILL)
    await all_ended(disturbed)
    assert [stream.seen for stream in disturbed] == expected

    async def whole() -> None:
        assert await roles(pools) == ["decode"] * 3 + ["prefill"]

    await eventually(whole, "one prefill and three decode workers", 30.0)
    await pools.idle(NUM_WORKERS)


async def test_the_command_scales_and_tells_what_is_impossible(pools: Stack) -> None:
    def scale(prefill: int, decode: int) -> tuple[int, str]:
        arguments = ["scale", "--prefill", str(prefill), "--decode", str(decode)]
        found = CliRunner().invoke(app, [*arguments, "--url", pools.url])
        return found.exit_code, found.output

    code, output = await asyncio.to_thread(scale, 2, 2)
    assert code == 0, output
    assert "2 prefill and 2 decode workers" in output
    code, output = await asyncio.to_thread(scale, 4, 0)
    assert code == 1
    assert "decode: 0 is not 1 or more" in output
    code, output = await asyncio.to_thread(scale, 4, 3)
    assert code == 1
    assert "7 workers are asked for, 4 take work" in output


async def test_a_new_decode_worker_gets_sequences_of_one_that_has_many(pools: Stack) -> None:
    before = (await pools.moved()).get("balance", 0.0)
    assert (await scaled(pools, 3, 1)).status_code == 200
    disturbed = long_streams(pools)
    await some_reach(disturbed, len(disturbed), num_tokens=10)
    assert (await scaled(pools, 2, 2)).status_code == 200

    async def evened() -> None:
        assert (await pools.moved()).get("balance", 0.0) >= before + 2

    await eventually(evened, "two sequences have moved", 30.0)
    lens = [min(len(stream.token_ids) + 40, LONG) for stream in disturbed]
    for stream, length in zip(disturbed, lens, strict=True):
        await stream.reaches(length)
        await stream.disconnect()
    quiet = await all_ended(long_streams(pools, max(lens)))
    for moved, stayed, length in zip(disturbed, quiet, lens, strict=True):
        assert moved.token_ids[:length] == stayed.token_ids[:length]
    await pools.idle(NUM_WORKERS)


def long_streams(stack: Stack, max_tokens: int = LONG) -> list[Stream]:
    """Streams that last until they have been moved."""
    return [
        Stream(
            stack.url,
            [7 * n + i for i in range(20)],
            max_tokens=max_tokens,
            seed=n,
            temperature=float(n % 2),
        )
        for n in range(8)
    ]
