"""A prompt that reuses earlier ones gives the tokens that it gives when all of it is computed."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import ending_well
from tests.e2e.records import Records, outcomes, settled
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "heartbeat": 0.25,
    "page_size": 16,
    "num_pages": 512,
    "max_batch_tokens": 256,
    "poison": True,
    "verify_handoff": True,
}
SETUPS = {
    "split": ("--prefill", "1", "--decode", "1"),
    "colocated": ("--role", "colocated", "--workers", "1"),
}
NUM_TOKENS = 40


def draw(number: int, length: int) -> list[int]:
    rng = random.Random(number)
    return [rng.randrange(260) for _ in range(length)]


SYSTEM = draw(0, 700)
TURNS = [
    [*SYSTEM, *draw(1, 90)],  # computed whole; a state is kept at its end
    [*SYSTEM, *draw(2, 50)],  # parts from it behind the system prompt: computed, a state kept there
    [*SYSTEM, *draw(3, 200)],
    [*SYSTEM, *draw(1, 90)],  # the first one again
    draw(4, 30),  # too short to be kept
]


def stream(baton: Stack, prompt: list[int], number: int) -> Stream:
    """Greedy or sampled, the same every time."""
    temperature = float(number % 2)
    return Stream(baton.url, prompt, max_tokens=NUM_TOKENS, seed=number, temperature=temperature)


async def conversation(baton: Stack) -> tuple[list[Seen], list[Stream]]:
    """All turns one after the other, then one that goes on behind the answer of each."""
    streams = [await stream(baton, prompt, n).ended() for n, prompt in enumerate(TURNS)]
    for n, prompt in enumerate(TURNS):
        onwards = [*prompt, *streams[n].token_ids, *draw(10 + n, 20)]
        streams.append(await stream(baton, onwards, n).ended())
    return [each.seen for each in streams], streams


@pytest.fixture(scope="module", params=SETUPS)
def baton(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with ending_well(Stack(served("per_expert"), *SETUPS[request.param], **SETTINGS)) as stack:
        yield stack


@pytest.fixture(scope="module")
def without() -> Iterator[Stack]:
    args = (*SETUPS["split"], "--no-prefix-cache")
    with ending_well(Stack(served("per_expert"), *args, **SETTINGS)) as stack:
        yield stack


async def test_the_tokens_of_a_server_without_a_cache(baton: Stack, without: Stack) -> None:
    expected, _ = await conversation(without)
    seen, streams = await conversation(baton)
    assert seen == expected
    records = await whole(baton, streams)
    reused = [int(records[each.http_id].get("num_reused", 0)) for each in streams]
    # Chunks end at multiples of 64 tokens, and one token is computed at least.
    assert reused[:5] == [0, 0, 640, 768, 0]
    # Every prompt goes on behind an answer, or behind a state of its prompt.
    assert all(n > 512 for n in reused[5:9]), reused
    again, streams = await conversation(baton)
    assert again == expected
    await baton.idle(1 if "colocated" in baton.text else 2)


async def test_prompts_that_come_together_are_computed_once(baton: Stack) -> None:
    begin = draw(20, 900)
    prompts = [[*begin, *draw(21 + n, 40)] for n in range(6)]
    streams = await all_ended([stream(baton, prompt, 0) for prompt in prompts])
    records = await whole(baton, streams)
    computed = sum(len(p) for p in prompts) - sum(
        int(records[each.http_id].get("num_reused", 0)) for each in streams
    )
    assert computed <= 900 + 6 * (40 + 64) + 64


async def whole(baton: Stack, streams: list[Stream]) -> Records:
    with baton.redis() as server:
        return await settled(server, outcomes(streams))
