"""litellm: completion, tools, streaming, structured output. It wants an older openai than Baton's
other tests, so tests/clients/run.py gives it an environment of its own."""

import json
from typing import Any

import litellm
import pytest

from tests.clients.api import MODEL, TIMEOUT_S, Api
from tests.clients.tools import (
    CALCULATOR,
    LOOKUP,
    SHELLS,
    SHELLS_LEFT,
    Calculator,
    Lookup,
    called,
    last_number,
    named,
)

PROVIDERS = ("openai", "hosted_vllm")
KINDS = {"calculator": Calculator, "lookup": Lookup}


def ask(api: Api, **fields: Any) -> Any:
    given = {
        "model": f"openai/{MODEL}", "messages": [{"role": "user", "content": SHELLS}],
        "temperature": 0, "max_tokens": 200, **fields,
    }  # fmt: skip
    return litellm.completion(
        api_base=api.base, api_key="none", timeout=TIMEOUT_S, num_retries=0, **given
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_completion_and_its_stream(api: Api, provider: str) -> None:
    whole = ask(api, model=f"{provider}/{MODEL}")
    text = whole.choices[0].message.content
    assert last_number(text) == SHELLS_LEFT
    assert whole.usage.completion_tokens > 0
    usage = {"include_usage": True}
    chunks = list(ask(api, model=f"{provider}/{MODEL}", stream=True, stream_options=usage))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert litellm.stream_chunk_builder(chunks).usage.total_tokens == whole.usage.total_tokens


def test_text_completions(api: Api) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt="The sky is", max_tokens=4,
        api_base=api.base, api_key="none",
    )  # fmt: skip
    assert answer.choices[0].text


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("choice", ["required", named("lookup")])
def test_tools_whole_and_streamed(api: Api, provider: str, choice: Any) -> None:
    options = {"tools": [CALCULATOR, LOOKUP], "tool_choice": choice, "parallel_tool_calls": False}
    options["model"] = f"{provider}/{MODEL}"
    whole = ask(api, **options).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    KINDS[call.function.name].model_validate_json(call.function.arguments)
    built = litellm.stream_chunk_builder(list(ask(api, stream=True, **options)))
    (streamed,) = built.choices[0].message.tool_calls
    assert streamed.function.name == call.function.name
    assert json.loads(streamed.function.arguments) == json.loads(call.function.arguments)
    assert built.choices[0].finish_reason == "tool_calls"


def test_results_of_calls(api: Api) -> None:
    messages: list[Any] = [{"role": "user", "content": SHELLS}]
    tools = [CALCULATOR, LOOKUP]
    for name in ("lookup", "calculator", "calculator"):
        said = ask(api, messages=messages, tools=tools, tool_choice=named(name)).choices[0].message
        messages.append(said.model_dump())
        for call in said.tool_calls:
            result = called(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = ask(api, messages=messages, tools=tools, tool_choice="none").choices[0].message
    assert answer.content
    assert not answer.tool_calls


@pytest.mark.parametrize("provider", PROVIDERS)
def test_structured_output(api: Api, provider: str) -> None:
    answer = ask(api, model=f"{provider}/{MODEL}", response_format=Lookup)
    assert Lookup.model_validate_json(answer.choices[0].message.content)


def test_thoughts(api: Api) -> None:
    options = {"reasoning_effort": "high", "extra_body": {"thinking_token_budget": 20}}
    message = ask(api, model=f"hosted_vllm/{MODEL}", **options).choices[0].message
    assert message.reasoning_content
    assert message.content


def test_errors_are_its_exceptions(api: Api) -> None:
    with pytest.raises(litellm.NotFoundError):
        ask(api, model="openai/other")
    with pytest.raises(litellm.BadRequestError):
        ask(api, temperature=-1)
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(api, max_tokens=100_000)


async def test_the_asynchronous_client(api: Api) -> None:
    answer = await litellm.acompletion(
        model=f"openai/{MODEL}", messages=[{"role": "user", "content": SHELLS}], temperature=0,
        api_base=api.base, api_key="none", stream=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    pieces = [chunk.choices[0].delta.content or "" async for chunk in answer]
    assert last_number("".join(pieces)) == SHELLS_LEFT
