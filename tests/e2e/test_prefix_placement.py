"""Where prompts are computed whose beginnings are kept, in a real system with several workers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.e2e.conftest import ending_well
from tests.e2e.served import TINY
from tests.e2e.stack import Stack
from tests.e2e.waiting import eventually

Turn = tuple[list[int], dict[str, object]]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with ending_well(
        Stack(TINY, "--prefill", "2", "--decode", "1", verify_handoff=True)
    ) as running:
        yield running


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=60.0) as client:
        yield client


async def ask(http: httpx.AsyncClient, prompt: list[int], max_tokens: int = 20) -> Turn:
    """The answer's token ids, and the request's record."""
    body = {
        "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0.0,
        "return_token_ids": True,
    }  # fmt: skip
    answer = (await http.post("/v1/completions", json=body)).raise_for_status().json()
    record = (await http.get(f"/v1/requests/{answer['id']}")).raise_for_status().json()
    return answer["choices"][0]["token_ids"], record


async def test_the_next_turn_pulls_the_answer_from_where_it_was_decoded(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    prompt = [100 + i % 150 for i in range(700)]
    first, record = await ask(http, prompt, 400)
    assert record["cached_tokens"] == 0

    async def kept() -> None:
        workers = (await stack.status())["workers"]
        assert all(w["kept_prefixes"] for w in workers if w["role"] == "decode")

    await eventually(kept, "the answer is kept")
    again = [*prompt, *first, 7, 8, 9]
    answer, record = await ask(http, again)
    assert record["reused"] == "peer"
    assert record["cached_tokens"] >= 1_000
    salted = {"prompt": again, "cache_salt": "other", "max_tokens": 20, "ignore_eos": True,
              "temperature": 0.0, "return_token_ids": True}  # fmt: skip
    computed = (await http.post("/v1/completions", json=salted)).raise_for_status().json()
    assert computed["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert computed["choices"][0]["token_ids"] == answer


async def test_prompts_that_begin_alike_and_come_together_are_computed_once_each(
    http: httpx.AsyncClient,
) -> None:
    common = [100 + i * 7 % 150 for i in range(2_000)]
    turns = await asyncio.gather(*(ask(http, [*common, 5, n]) for n in range(8)))
    cached = sum(record["cached_tokens"] for _, record in turns)
    assert cached >= 6 * 1_900, "by each prefill worker once at most"
    places = Counter(record["prefill_worker"] for _, record in turns)
    assert max(places.values()) >= 4
