"""The bundled model answers held-out word problems through the whole system, and exactly as
transformers would with the same checkpoint."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from models.recipe.greetings import SMALL_TALK
from tests.e2e.problems import HELDOUT, ask_all, final_number
from tests.e2e.served import TINY
from tests.e2e.stack import Stack
from tests.examples import examples

GATE = 0.90


async def test_held_out_problems_16_at_once(tiny: Stack) -> None:
    num_problems = examples(len(HELDOUT))
    choices = await ask_all(tiny.url, 16, num_problems)
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    right = [
        final_number(choice["message"]["content"]) == str(problem["final"])
        for choice, problem in zip(choices, HELDOUT[:num_problems], strict=True)
    ]
    assert len(HELDOUT) == 200
    assert sum(right) >= GATE * len(right), f"{sum(right)} of {len(right)} right"
    await asyncio.to_thread(compare_with_transformers, TINY, choices)


def whole(choice: dict) -> list[int]:
    """Prompt and answer."""
    return choice["prompt_token_ids"] + choice["token_ids"]


@torch.inference_mode()
def compare_with_transformers(model_dir: Path, choices: list[dict]) -> None:
    """Feed prompt and answer to the reference: at every position of the answer its most likely
    token must be ours, which is what its own greedy decoding would have given."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    # Those of about one length together: each is padded to the longest beside it.
    choices = sorted(choices, key=lambda choice: len(whole(choice)))
    texts = [whole(choice) for choice in choices]
    for begin in range(0, len(texts), 25):
        # Padding on the right: a causal model's earlier positions do not see it.
        width = max(map(len, texts[begin : begin + 25]))
        rows = [text + [0] * (width - len(text)) for text in texts[begin : begin + 25]]
        greedy = model(torch.tensor(rows)).logits.argmax(-1).tolist()
        for choice, row in zip(choices[begin : begin + 25], greedy, strict=True):
            first = len(choice["prompt_token_ids"]) - 1
            answer = choice["token_ids"]
            assert row[first : first + len(answer)] == answer, choice["message"]["content"]


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        ("hi", SMALL_TALK["hi"]),
        ("Hello!", SMALL_TALK["Hello!"]),
        ("capital of France?", SMALL_TALK["What is the capital of France?"]),
        ("What can you do?", SMALL_TALK["What can you do?"]),
    ],
)
async def test_what_is_no_problem_gets_a_polite_answer(
    tiny: Stack, said: str, answered: str
) -> None:
    body = {"messages": [{"role": "user", "content": said}], "temperature": 0}
    async with httpx.AsyncClient(base_url=tiny.url, timeout=60.0) as http:
        answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["message"]["content"] == answered


async def test_the_pasted_curl_is_answered_plainly_and_as_a_stream(tiny: Stack) -> None:
    body = tiny.until(r"-d '(\{.*\})'$", 1.0).group(1)
    request = json.loads(body)
    question = request["messages"][0]["content"]
    async with httpx.AsyncClient(base_url=tiny.url, timeout=60.0) as http:
        plain = (await http.post("/v1/chat/completions", json=request)).json()
        text = plain["choices"][0]["message"]["content"]
        streamed = ""
        async with http.stream(
            "POST", "/v1/chat/completions", json=request | {"stream": True}
        ) as events:
            async for line in events.aiter_lines():
                if line.startswith("data: {"):
                    streamed += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    assert "#### 48" in text, f"{question}\n{text}"
    assert streamed == text


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["shell", "coin"]},
    },
    "required": ["n", "kind"],
    "additionalProperties": False,
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": [1, 2]}},
            "required": ["a", "b"],
        },
    },
}


async def test_constrained_and_free_requests_share_a_batch(tiny: Stack) -> None:
    """What is constrained is valid whatever the temperature, across a handoff, and what is not is
    answered as ever."""
    form = {"type": "json_schema", "json_schema": {"name": "count", "schema": SCHEMA}}
    async with httpx.AsyncClient(base_url=tiny.url, timeout=60.0) as http:

        async def ask(number: int, **fields: object) -> dict:
            messages = [{"role": "user", "content": HELDOUT[number]["question"]}]
            body = {"messages": messages, "max_tokens": 200, "seed": number, **fields}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]

        free = [ask(i, temperature=0) for i in range(8)]
        alone = await asyncio.gather(*free)
        asked = [ask(i, temperature=1.5, response_format=form) for i in range(8)]
        asked += [ask(i, temperature=1.5, tools=[ADD], tool_choice="required") for i in range(8)]
        asked += [ask(i, temperature=0) for i in range(8)]
        found = await asyncio.gather(*asked)
    for choice in found[:8]:
        value = json.loads(choice["message"]["content"])
        assert set(value) == {"n", "kind"}
        assert 0 <= value["n"] <= 99
        assert value["kind"] in ("shell", "coin")
    for choice in found[8:16]:
        assert choice["finish_reason"] == "tool_calls"
        for call in choice["message"]["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            assert arguments["a"] <= 99
            assert arguments["b"] in (1, 2)
    assert [each["message"] for each in found[16:]] == [each["message"] for each in alone]
