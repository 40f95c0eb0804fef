"""langchain-openai: tools, structured output in its three methods, an agent's loop."""

from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI

from tests.clients import tools
from tests.clients.api import MODEL, TIMEOUT_S, Api
from tests.clients.test_openai_structured import Item
from tests.clients.tools import SHELLS, SHELLS_LEFT, last_number

CALCULATOR = tool("calculator", args_schema=tools.Calculator)(tools.calculator)
LOOKUP = tool("lookup", args_schema=tools.Lookup)(tools.lookup)
BY_NAME: dict[str, BaseTool] = {"calculator": CALCULATOR, "lookup": LOOKUP}
BOTH = list(BY_NAME.values())


@pytest.fixture(scope="module")
def chat(api: Api) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL, base_url=api.base, api_key="none", temperature=0, max_tokens=200,
        max_retries=0, timeout=TIMEOUT_S,
    )  # fmt: skip


def test_text_whole_and_streamed(chat: ChatOpenAI) -> None:
    whole = chat.invoke(SHELLS)
    assert last_number(str(whole.content)) == SHELLS_LEFT
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 0
    pieces = list(chat.stream(SHELLS))
    assert "".join(str(piece.content) for piece in pieces) == whole.content
    assert len(pieces) > 2


@pytest.mark.parametrize("choice", ["any", "calculator", "lookup"])
def test_bind_tools(chat: ChatOpenAI, choice: str) -> None:
    answer = chat.bind_tools(BOTH, tool_choice=choice, parallel_tool_calls=False).invoke(SHELLS)
    assert isinstance(answer, AIMessage)
    assert answer.invalid_tool_calls == []
    (call,) = answer.tool_calls
    assert call["name"] in ((choice,) if choice in BY_NAME else BY_NAME)
    assert isinstance(BY_NAME[call["name"]].invoke(call), ToolMessage)


def test_a_streamed_call_adds_up(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools(BOTH, tool_choice="calculator")
    whole = bound.invoke(SHELLS)
    total: Any = None
    for chunk in bound.stream(SHELLS):
        assert isinstance(chunk, AIMessageChunk)
        total = chunk if total is None else total + chunk
    assert isinstance(whole, AIMessage)
    assert [call["args"] for call in total.tool_calls] == [
        call["args"] for call in whole.tool_calls
    ]
    assert total.invalid_tool_calls == []


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
@pytest.mark.parametrize("strict", [None, True])
def test_structured_output(
    chat: ChatOpenAI, method: Literal["function_calling", "json_schema"], strict: bool | None
) -> None:
    made = chat.with_structured_output(Item, method=method, strict=strict, include_raw=True)
    found: Any = made.invoke(SHELLS)
    assert found["parsing_error"] is None
    assert isinstance(found["parsed"], Item)


def test_structured_output_in_json_mode(chat: ChatOpenAI) -> None:
    """JSON mode knows no schema, so a model without practice in it may put anything in it."""
    made = chat.with_structured_output(None, method="json_mode", include_raw=True)
    asked = f"{SHELLS} Answer with a JSON object."
    for temperature in (0.0, 1.0, 1.5):
        found: Any = made.invoke(asked, temperature=temperature)
        assert found["raw"].content.startswith("{")
        if found["raw"].response_metadata["finish_reason"] == "stop":
            assert isinstance(found["parsed"], dict)


def test_an_agents_loop_of_three_forced_calls(chat: ChatOpenAI) -> None:
    messages: list[Any] = [HumanMessage(SHELLS)]
    for name in ("lookup", "calculator", "calculator"):
        said = chat.bind_tools(BOTH, tool_choice=name).invoke(messages)
        assert isinstance(said, AIMessage)
        messages.append(said)
        messages += [BY_NAME[call["name"]].invoke(call) for call in said.tool_calls]
    assert [message.type for message in messages] == ["human"] + ["ai", "tool"] * 3
    answer = chat.bind_tools(BOTH, tool_choice="none").invoke(messages)
    assert isinstance(answer, AIMessage)
    assert answer.content
    assert answer.tool_calls == []


@pytest.mark.parametrize(("question", "number"), tools.AGENT_TASKS.items())
def test_an_agent_ends_with_the_right_number(chat: ChatOpenAI, question: str, number: int) -> None:
    messages: list[Any] = [HumanMessage(question)]
    bound = chat.bind_tools(BOTH)
    for _ in range(6):
        said = bound.invoke(messages)
        assert isinstance(said, AIMessage)
        messages.append(said)
        if not said.tool_calls:
            break
        messages += [BY_NAME[call["name"]].invoke(call) for call in said.tool_calls]
    assert last_number(str(messages[-1].content)) == number
