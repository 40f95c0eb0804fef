"""OpenAI's Responses API with its own client, against the whole system."""

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

from tests.clients.tools import SHELLS, SHELLS_LEFT, Calculator, calculator, last_number
from tests.coordinator.responses.grammar import check
from tests.coordinator.responses.sdk import shape
from tests.e2e.problems import HELDOUT, final_number
from tests.e2e.stack import Stack

QUESTION = HELDOUT[0]["question"]
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": NUMBER, "b": NUMBER},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALCULATOR: Any = [{
    "type": "function",
    "name": "calculator",
    "description": Calculator.__doc__,
    "parameters": Calculator.model_json_schema(),
    "strict": False,
}]  # fmt: skip


@pytest.fixture
async def client(tiny: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{tiny.url}/v1", api_key="none", max_retries=0, timeout=60.0
    ) as client:
        yield client


class Count(BaseModel):
    n: int
    kind: Literal["shell", "coin"]


async def test_an_answer_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(model="tiny", input=QUESTION, temperature=0)
    assert whole.status == "completed"
    assert final_number(whole.output_text) == str(HELDOUT[0]["final"])
    assert whole.usage is not None
    assert whole.usage.output_tokens > 10
    stream = await client.responses.create(
        model="tiny", input=QUESTION, temperature=0, stream=True, store=False
    )
    events = [event async for event in stream]
    assert list(map(shape, check(events))) == list(map(shape, whole.output))
    assert sum(isinstance(event, ResponseTextDeltaEvent) for event in events) > 10
    async with client.responses.stream(model="tiny", input=QUESTION, temperature=0) as helped:
        final = await helped.get_final_response()
    assert final.output_text == whole.output_text


async def test_a_parsed_answer(client: openai.AsyncOpenAI) -> None:
    for seed in range(4):
        response = await client.responses.parse(
            model="tiny", input=QUESTION, text_format=Count, temperature=1.5,
            extra_body={"seed": seed},
        )  # fmt: skip
        assert response.output_parsed is not None
        assert response.output_parsed.kind in ("shell", "coin")


async def test_a_loop_of_tools_by_ids(client: openai.AsyncOpenAI, tiny: Stack) -> None:
    """As an agent does it: three calls, each answered by its call_id in a turn of its own."""
    response = await client.responses.create(
        model="tiny", input="Add.", tools=[ADD], tool_choice="required", parallel_tool_calls=False
    )
    for turn in range(3):
        (call,) = response.output
        assert call.type == "function_call"
        numbers = json.loads(call.arguments)
        assert set(numbers) == {"a", "b"}
        response = await client.responses.create(
            model="tiny",
            previous_response_id=response.id,
            input=[{
                "type": "function_call_output", "call_id": call.call_id,
                "output": str(numbers["a"] + numbers["b"]),
            }],
            tools=[ADD],
            tool_choice="required" if turn < 2 else "none",
            parallel_tool_calls=False,
            max_output_tokens=120,
        )  # fmt: skip
    assert all(item.type == "message" for item in response.output)
    found = await client.responses.retrieve(response.id)
    assert found.output == response.output
    assert found.usage == response.usage
    async with httpx.AsyncClient(base_url=tiny.url) as http:
        record = (await http.get(f"/v1/requests/{response.id}")).json()
    assert record["state"] == "finished"
    assert record["completion_tokens"] == (response.usage and response.usage.output_tokens)
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_an_agent_ends_with_the_right_number(client: openai.AsyncOpenAI) -> None:
    """Nothing forces a call: the model makes it, reads its result and answers."""
    given: list[Any] = [{"role": "user", "content": SHELLS}]
    previous, calls = None, 0
    for _ in range(6):
        response = await client.responses.create(
            model="tiny", input=given, previous_response_id=previous, tools=CALCULATOR,
            temperature=0, max_output_tokens=200,
        )  # fmt: skip
        previous = response.id
        given = [
            {
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": calculator(**json.loads(item.arguments)),
            }
            for item in response.output
            if item.type == "function_call"
        ]
        calls += len(given)
        if not given:
            break
    assert calls > 0
    assert last_number(response.output_text) == SHELLS_LEFT


async def test_a_thought_and_logprobs(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(
        model="tiny",
        input=QUESTION,
        reasoning={"effort": "low"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        temperature=0,
        extra_body={"thinking_token_budget": 8},
    )
    thought, message = response.output
    assert thought.type == "reasoning"
    assert thought.content
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert b"".join(bytes(token.bytes) for token in part.logprobs).decode() == part.text
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens <= 12


async def test_a_limit_makes_it_incomplete(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model="tiny", input=QUESTION, max_output_tokens=4)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_client_that_leaves_frees_everything(
    client: openai.AsyncOpenAI, tiny: Stack
) -> None:
    stream = await client.responses.create(
        model="tiny", input=QUESTION, stream=True, extra_body={"ignore_eos": True}
    )
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    await tiny.idle(num_workers=2)


async def test_errors_have_their_types(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="web_search") as refused:
        await client.responses.create(
            model="tiny", input="Hi", tools=[{"type": "web_search_preview"}],
            tool_choice={"type": "web_search_preview"},
        )  # fmt: skip
    assert refused.value.param == "tool_choice.type"
    with pytest.raises(openai.BadRequestError, match="not found") as unknown:
        await client.responses.create(
            model="tiny", input="Hi", previous_response_id="resp_" + "0" * 32
        )
    assert unknown.value.code == "previous_response_not_found"
