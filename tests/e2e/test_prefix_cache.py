"""A prompt that reuses earlier ones gives the tokens that it gives when all of it is computed."""

import asyncio
import random
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from coordinator.record import keys
from tests.e2e.conftest import ending_well
from tests.e2e.records import Records, outcomes, settled
from tests.e2e.served import TINY, served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended
from tests.e2e.waiting import eventually

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
NUM_TOKENS = 24


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


def stream(baton: Stack, prompt: list[int], number: int, max_tokens: int = NUM_TOKENS) -> Stream:
    """Greedy or sampled, the same every time."""
    temperature = float(number % 2)
    return Stream(baton.url, prompt, max_tokens=max_tokens, seed=number, temperature=temperature)


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
def known() -> dict[str, Any]:
    """What ``cold`` answers to each test; filled by the first set-up that asks."""
    return {}


async def test_the_tokens_of_a_server_without_a_cache(
    baton: Stack, cold: Stack, known: dict[str, Any]
) -> None:
    if "conversation" not in known:
        known["conversation"], _ = await conversation(cold)
    expected = known["conversation"]
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


FIELDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3, "top_p": 0.9},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "biased": {"logit_bias": {"65": 3.0, "66": -100}, "min_tokens": 5},
    "logprobs": {"logprobs": 3},
    "choices": {"n": 3, "seed": 5, "temperature": 1.0},
    "salted": {"cache_salt": "tenant"},
    "prompt_logprobs": {"prompt_logprobs": 1},
}


def ask(baton: Stack, prompt: list[int], **fields: object) -> tuple[list[dict[str, Any]], int]:
    """The answer's choices, and how many of the prompt's tokens were cached."""
    body = {
        "prompt": prompt, "max_tokens": 20, "ignore_eos": True, "temperature": 0,
        "return_token_ids": True, **fields,
    }  # fmt: skip
    answer = httpx.post(f"{baton.url}/v1/completions", json=body, timeout=30.0).raise_for_status()
    usage = answer.json()["usage"]
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    return choices, usage["prompt_tokens_details"]["cached_tokens"]


def test_what_requests_ask_for_is_the_same_behind_a_prefix(baton: Stack, cold: Stack) -> None:
    prompt = draw(40, 750)
    ask(baton, prompt)
    for name, fields in FIELDS.items():
        expected, _ = ask(cold, prompt, **fields)
        found, num_cached = ask(baton, prompt, **fields)
        assert num_cached == (0 if name in ("salted", "prompt_logprobs") else 704), name
        for choice, other in zip(found, expected, strict=True):
            assert choice["token_ids"] == other["token_ids"], name
            assert choice["text"] == other["text"], name
            scored, others = choice.pop("logprobs"), other.pop("logprobs")
            assert (scored is None) == (others is None) == (name != "logprobs")
            if scored is not None:
                assert scored["token_logprobs"] == pytest.approx(others["token_logprobs"], abs=1e-3)


async def test_the_next_coordinator_knows_the_prefixes_of_workers_that_it_did_not_start(
    baton: Stack,
) -> None:
    """After deaths that follow each other, each followed by a start at once."""
    prompt, pids = draw(45, 750), baton.pids()
    expected, _ = await asyncio.to_thread(ask, baton, prompt)
    for _ in range(2):
        since = len(baton.lines)
        baton.kill("coordinator", signal.SIGKILL)
        await asyncio.to_thread(baton.until, "coordinator: .*starts again in 0 s", 10.0, since)
        await baton.idle(1 if "colocated" in baton.text else 2)
        choices, num_cached = await asyncio.to_thread(ask, baton, prompt)
        assert (choices, num_cached) == (expected, 704)
    assert baton.pids() | {"coordinator": 0} == pids | {"coordinator": 0}


async def test_a_stream_behind_a_prefix_goes_on_when_its_worker_is_killed(
    baton: Stack, cold: Stack, known: dict[str, Any]
) -> None:
    prompt = draw(50, 500)
    colocated = "colocated" in baton.text
    if "stream" not in known:
        known["stream"] = (await stream(cold, prompt, 0, max_tokens=500).ended()).seen
    await stream(baton, prompt, 1).ended()
    found = stream(baton, prompt, 0, max_tokens=500)
    await found.reaches(3)
    baton.kill("colocated-1" if colocated else "decode-1", signal.SIGKILL)
    await found.ended()
    assert found.seen == known["stream"]
    record = await ended(baton, found)
    assert int(record["attempt"]) > 1
    assert int(record["num_reused"]) > 0
    await baton.idle(1 if colocated else 2, 40.0)


def test_drafts_behind_a_prefix_are_those_of_a_prompt_computed_whole() -> None:
    """Prompts with a salt that no other has are computed whole."""
    settings = SETTINGS | {"page_size": 64, "num_pages": 128}
    with ending_well(Stack(TINY, *SETUPS["colocated"], **settings)) as baton:
        prompt = [100 + i * 7 % 150 for i in range(600)]
        reused = []
        for nth in range(4):
            fields = {"max_tokens": 40, "temperature": float(nth == 2), "seed": nth}
            (choice,), num_cached = ask(baton, prompt, **fields)
            (other,), none = ask(baton, prompt, cache_salt=f"salt {nth}", **fields)
            assert none == 0
            assert choice["token_ids"] == other["token_ids"]
            reused.append(num_cached)
            prompt = [*prompt, *choice["token_ids"], *range(100, 100 + 20 * nth)]
        assert reused[0] == 0
        assert all(n >= 600 for n in reused[1:]), reused
        status = httpx.get(f"{baton.url}/metrics").text
    accepted = [line for line in status.splitlines() if "accepted" in line and line[0] != "#"]
    assert any(float(line.split()[-1]) > 0 for line in accepted), accepted


async def ended(baton: Stack, found: Stream) -> dict[str, str]:
    """The record of a request that has finished."""

    async def check() -> dict[str, str]:
        with baton.redis() as server:
            names = server.scan_iter(keys.REQUEST_PREFIX + "*", count=1000)
            records = [server.hgetall(name) for name in names]
        (record,) = (each for each in records if each["http_id"] == found.http_id)
        assert record["state"] == "finished"
        return record

    return await eventually(check, "that its record ends")


async def whole(baton: Stack, streams: list[Stream]) -> Records:
    with baton.redis() as server:
        return await settled(server, outcomes(streams))
