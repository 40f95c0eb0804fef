"""openai-python: tools with every ``tool_choice``, whole and streamed."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.clients.api import MODEL, Api
from tests.clients.tools import (
    AGENT_TASKS,
    CALCULATOR,
    LOOKUP,
    PRICES,
    SHELLS,
    Calculator,
    Lookup,
    called,
    last_number,
    named,
)

ASKED = [{"role": "user", "content": SHELLS}]
BOTH = [CALCULATOR, LOOKUP]
KINDS = {"calculator": Calculator, "lookup": Lookup}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"messages": ASKED, "tools": BOTH, "temperature": 0, "max_tokens": 200, **fields}
    return client.chat.completions.create(model=MODEL, **given)


def assert_fits(call: Any) -> None:
    assert call.id
    assert call.type == "function"
    KINDS[call.function.name].model_validate_json(call.function.arguments)


@pytest.mark.parametrize("name", KINDS)
def test_a_named_function_is_called_once_and_fits(client: openai.OpenAI, name: str) -> None:
    choice = ask(client, tool_choice=named(name)).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert call.function.name == name
    assert_fits(call)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_required_gives_calls_that_fit(client: openai.OpenAI, temperature: float) -> None:
    options = {"temperature": temperature, "seed": 3, "parallel_tool_calls": False}
    choice = ask(client, tool_choice="required", **options).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert_fits(call)


def test_none_gives_text_and_so_do_no_tools(client: openai.OpenAI) -> None:
    for options in ({"tool_choice": "none"}, {"tools": []}):
        choice = ask(client, **options).choices[0]
        assert choice.message.content
        assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")


def test_auto_gives_text_or_calls(client: openai.OpenAI) -> None:
    choice = ask(client, tool_choice="auto").choices[0]
    for call in choice.message.tool_calls or ():
        assert_fits(call)
    wanted = "tool_calls" if choice.message.tool_calls else "stop"
    assert choice.finish_reason == wanted
    assert choice.message.content or choice.message.tool_calls


def test_several_calls_in_one_answer_have_ids_of_their_own(client: openai.OpenAI, api: Api) -> None:
    """The model may not end its answer, so call follows call until the last is cut off."""
    ends = httpx.post(f"{api.url}/tokenize", json={"prompt": "<|im_end|><|endoftext|>"}).json()
    never = {str(token): -100 for token in ends["tokens"]}
    options = {"tool_choice": "required", "temperature": 1, "seed": 1, "logit_bias": never}
    choice = ask(client, **options).choices[0]
    assert choice.finish_reason == "length"
    calls = choice.message.tool_calls
    assert len({call.id for call in calls}) == len(calls) > 2
    for call in calls[:-1]:
        assert_fits(call)
    alone = ask(client, **options, parallel_tool_calls=False).choices[0]
    assert (len(alone.message.tool_calls), alone.finish_reason) == (1, "tool_calls")


@pytest.mark.parametrize("choice", ["required", named("lookup")])
def test_a_stream_says_the_same_as_the_whole_answer(client: openai.OpenAI, choice: Any) -> None:
    options = {"tool_choice": choice, "parallel_tool_calls": False}
    whole = ask(client, **options)
    (call,) = whole.choices[0].message.tool_calls
    usage = {"include_usage": True}
    *chunks, last = list(ask(client, stream=True, stream_options=usage, **options))
    assert last.choices == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(last.usage, name) == getattr(whole.usage, name)
    deltas = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or ()]
    first, *others = deltas
    assert first.id.startswith("call_")
    assert first.function.name == call.function.name
    assert {each.index for each in deltas} == {0}
    assert all(each.id is None and each.function.name is None for each in others)
    arguments = "".join(each.function.arguments for each in deltas)
    assert json.loads(arguments) == json.loads(call.function.arguments)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["tool_calls"]


def test_the_stream_helper_assembles_the_calls(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Calculator, name="calculator")
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, tools=[tool], tool_choice="required", max_tokens=200,
        temperature=0, parallel_tool_calls=False,
    ) as stream:  # fmt: skip
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Calculator)


def test_a_strict_function_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASKED, tools=[openai.pydantic_function_tool(Lookup, name="lookup")],
        tool_choice=named("lookup"), temperature=1.5, seed=1, max_tokens=100,
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Lookup)


def test_three_forced_calls_and_their_results_and_then_text(client: openai.OpenAI) -> None:
    messages: list[Any] = list(ASKED)
    for name in ("lookup", "calculator", "calculator"):
        said = ask(client, messages=messages, tool_choice=named(name)).choices[0].message
        messages.append(said)
        for call in said.tool_calls:
            result = called(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    choice = ask(client, messages=messages, tool_choice="none").choices[0]
    assert choice.message.content
    assert choice.message.tool_calls is None


@pytest.mark.parametrize(("question", "number"), AGENT_TASKS.items())
def test_an_agent_ends_with_the_right_number(
    client: openai.OpenAI, question: str, number: int
) -> None:
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(6):
        said = ask(client, messages=messages).choices[0].message
        messages.append(said)
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            result = called(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert last_number(said.content) == number
    if question == PRICES:
        assert [each["role"] for each in messages if isinstance(each, dict)].count("tool") >= 3
