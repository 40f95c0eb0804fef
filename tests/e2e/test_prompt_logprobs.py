"""Log-probabilities of prompts are transformers', at every position, whichever worker computed
them, in whatever chunks, and also when it died meanwhile."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import torch

from coordinator.text.tokenizer import Tokenizer
from tests.e2e.conftest import Start
from tests.e2e.served import TINY
from tests.e2e.stack import Stack
from tests.e2e.waiting import eventually
from tests.engine.bundled_truth import prompt_truth, text_ids

NUM_TOP = 20
ATOL = 5e-4
"""Between two orders of float32 sums over two thousand tokens."""
LENGTHS = (1, 2, 63, 64, 65, 300, 1500)
PROMPTS = [text_ids(length, start=3) for length in LENGTHS]
SETTINGS: dict[str, Any] = {"dtype": "float32", "heartbeat": 0.25, "dead_after": 3.0}
NUM_IDS = Tokenizer.load(TINY).num_valid_ids


async def ask(baton: Stack, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    """The answer, with the id of its record under ``http_id``."""
    headers = {"X-Request-Id": uuid4().hex}
    async with httpx.AsyncClient(timeout=120.0, headers=headers) as http:
        response = await http.post(f"{baton.url}{path}", json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json() | {"http_id": headers["X-Request-Id"]}
    return answer


async def scored(baton: Stack, prompts: list[list[int]] = PROMPTS, **body: Any) -> list[Any]:
    """The choices of prompts that are all asked for together."""
    asked = {"prompt_logprobs": NUM_TOP, "echo": True, "logprobs": 1, "max_tokens": 0}
    found: list[Any] = (await ask(baton, prompt=prompts, **asked | body))["choices"]
    return found


def assert_true(choice: dict[str, Any], ids: list[int]) -> None:
    """Both forms are those of ``ids`` by transformers."""
    first, *entries = choice["prompt_logprobs"]
    assert (first, len(entries)) == (None, len(ids) - 1)
    echoed = choice["logprobs"]
    assert echoed["token_logprobs"][0] is None
    assert [len(each) for each in echoed.values()] == [len(ids)] * 4
    if len(ids) == 1:
        return
    truth = prompt_truth(ids, NUM_IDS)
    own = _own(choice["prompt_logprobs"], ids)
    expected = truth.gather(1, torch.tensor(ids[1:]).unsqueeze(1))
    torch.testing.assert_close(own, expected.squeeze(1), atol=ATOL, rtol=0)
    assert torch.equal(torch.tensor(echoed["token_logprobs"][1:]), own)
    ranks = torch.tensor([each[str(i)]["rank"] for each, i in zip(entries, ids[1:], strict=True)])
    assert (ranks >= (truth > expected + ATOL).sum(-1) + 1).all()
    assert (ranks <= (truth > expected - ATOL).sum(-1)).all()
    values = torch.tensor([_best(each) for each in entries])
    torch.testing.assert_close(values, truth.topk(NUM_TOP).values, atol=ATOL, rtol=0)


def assert_close(choice: dict[str, Any], before: dict[str, Any], ids: list[int]) -> None:
    """The same up to rounding: an attempt that goes on does not score its first chunks, and so need
    not compute them in the blocks that keep the bits."""
    found, expected = (_own(each["prompt_logprobs"], ids) for each in (choice, before))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def _own(entries: list[Any], ids: list[int]) -> torch.Tensor:
    """The log-probabilities of the prompt's own tokens."""
    pairs = zip(entries[1:], ids[1:], strict=True)
    return torch.tensor([entry[str(token_id)]["logprob"] for entry, token_id in pairs])


def _best(entry: dict[str, Any]) -> list[float]:
    """The log-probabilities of ranks 1 to NUM_TOP, in their order."""
    by_rank = {found["rank"]: found["logprob"] for found in entry.values()}
    return [by_rank[rank] for rank in range(1, NUM_TOP + 1)]


async def test_every_position_is_transformers(tiny: Stack) -> None:
    for choice, ids in zip(await scored(tiny), PROMPTS, strict=True):
        assert choice["finish_reason"] == "length"
        assert_true(choice, ids)


async def test_a_chat_and_its_answer(tiny: Stack) -> None:
    messages = [{"role": "user", "content": "Nina has 3 pencils and gets 4 more. How many?"}]
    body = {"messages": messages, "max_tokens": 8, "return_token_ids": True}
    plain = await ask(tiny, "/v1/chat/completions", **body)
    found = await ask(tiny, "/v1/chat/completions", **body, prompt_logprobs=NUM_TOP)
    assert found["choices"][0]["message"] == plain["choices"][0]["message"]
    assert "prompt_logprobs" not in plain
    ids = found["prompt_token_ids"]
    own = _own(found["prompt_logprobs"], ids)
    expected = prompt_truth(ids, NUM_IDS).gather(1, torch.tensor(ids[1:]).unsqueeze(1))
    torch.testing.assert_close(own, expected.squeeze(1), atol=ATOL, rtol=0)


async def test_the_output_is_that_of_a_prompt_that_did_not_ask(tiny: Stack) -> None:
    """And its own log-probabilities follow those of the prompt: prompt + output scored again."""
    body = {"prompt": PROMPTS[-2], "max_tokens": 24, "logprobs": 3, "return_token_ids": True}
    (plain,) = (await ask(tiny, **body))["choices"]
    (echoed,) = (await ask(tiny, **body, echo=True))["choices"]
    num_prompt = len(PROMPTS[-2])
    assert echoed["token_ids"] == plain["token_ids"]
    assert echoed["text"].endswith(plain["text"])
    found = torch.tensor(echoed["logprobs"]["token_logprobs"][num_prompt:])
    expected = torch.tensor(plain["logprobs"]["token_logprobs"])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    (again,) = await scored(tiny, [PROMPTS[-2] + plain["token_ids"]])
    rescored = torch.tensor(again["logprobs"]["token_logprobs"][num_prompt:])
    torch.testing.assert_close(rescored, expected, atol=ATOL, rtol=0)


async def test_max_tokens_0_ends_at_the_prefill_worker(tiny: Stack) -> None:
    answer = await ask(tiny, prompt=PROMPTS[-2], prompt_logprobs=0, max_tokens=0)
    assert answer["usage"]["completion_tokens"] == 0

    async def recorded() -> None:
        async with httpx.AsyncClient() as http:
            listed = (await http.get(f"{tiny.url}/v1/requests")).json()["data"]
        (record,) = [each for each in listed if each["http_id"] == answer["http_id"]]
        assert record["state"] == "finished"
        assert record["prefill_worker"].startswith("prefill-")
        assert (record["decode_worker"], record["bytes_moved"]) == (None, 0)

    await eventually(recorded, "the record of a request without a handoff")
    await tiny.idle(num_workers=2)


async def test_chunks_and_roles_change_no_bit_and_a_death_nothing_else(
    tiny: Stack, start: Start
) -> None:
    expected = await scored(tiny)
    split = start(TINY, "--prefill", "1", "--decode", "1", max_batch_tokens=64, **SETTINGS)
    assert await scored(split) == expected
    long = [text_ids(1000, start=i) for i in range(2)]
    undisturbed = await scored(split, long, prompt_logprobs=0)
    asking = asyncio.create_task(scored(split, long, prompt_logprobs=0))

    async def computing() -> None:
        workers = (await split.status())["workers"]
        assert any(each["running"] for each in workers if each["role"] == "prefill")

    await eventually(computing, "that prompts are computed")
    split.kill("prefill-1")
    for choice, before, ids in zip(await asking, undisturbed, long, strict=True):
        assert choice["logprobs"]["tokens"] == before["logprobs"]["tokens"]
        assert_close(choice, before, ids)
    assert await scored(split) == expected
    await split.idle(num_workers=2, deadline_s=60.0)
    assert split.stop() == 0
    both = start(TINY, "--role", "colocated", "--workers", "1", max_batch_tokens=192, **SETTINGS)
    assert await scored(both) == expected
    alone = [(await scored(both, [ids]))[0] for ids in PROMPTS]
    assert [each["prompt_logprobs"] for each in alone] == [
        each["prompt_logprobs"] for each in expected
    ]
    await both.idle(num_workers=1)
    assert both.stop() == 0
