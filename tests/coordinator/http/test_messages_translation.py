"""A Messages request asks for the chat that it says in other words."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.http.errors import ApiError
from coordinator.http.messages.requests import CountTokensRequest, MessagesRequest
from coordinator.http.messages.translation import chat_of, client_field_names
from coordinator.http.preparation import parse
from coordinator.http.request_schemas import ChatRequest
from tests.coordinator.anthropic_sdk import asked

ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def chat(**body: Any) -> ChatRequest:
    request = parse("messages", msgspec.json.encode(asked(**body)))
    assert isinstance(request, MessagesRequest)
    return chat_of(request)


def rendered(**body: Any) -> list[dict[str, Any]]:
    return [message.rendered() for message in chat(**body).messages]


def test_the_agents_loop_in_the_words_of_a_chat() -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [text("Add "), text("5.")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "5 and?", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                text("So:"),
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": [5, {"b": "ö"}]}},
                {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "five"},
                {
                    "type": "tool_result", "tool_use_id": "t2", "is_error": True,
                    "content": [text("no "), text("b")],
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "tool_result", "tool_use_id": "t3"},
                text("Go on."),
            ],
        },
    ]  # fmt: skip
    calls = [
        {"id": key, "type": "function", "function": {"name": "add", "arguments": arguments}}
        for key, arguments in (("t1", {"a": [5, {"b": "ö"}]}), ("t2", {}))
    ]
    assert rendered(messages=turns, system="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add 5."},
        {"role": "assistant", "content": "So:", "reasoning_content": "5 and?", "tool_calls": calls},
        {"role": "tool", "content": "five", "tool_call_id": "t1"},
        {"role": "tool", "content": "Error: no b", "tool_call_id": "t2"},
        {"role": "tool", "content": "", "tool_call_id": "t3"},
        {"role": "user", "content": "Go on."},
    ]


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("Be brief.", "Be brief."),
        ([text("Be"), text(" brief.")], "Be brief."),
        (
            [
                text("x-anthropic-billing-header: cc_version=2; cch=1;"),
                text("Be brief.") | {"cache_control": {"type": "ephemeral"}},
            ],
            "Be brief.",
        ),
    ],
)
def test_the_system_prompt(system: Any, text: str) -> None:
    assert rendered(system=system)[0] == {"role": "system", "content": text}


@pytest.mark.parametrize("system", [None, "", []])
def test_no_system_prompt(system: Any) -> None:
    assert rendered(system=system) == [{"role": "user", "content": "Hi"}]


def test_a_system_message_between_others() -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ""},
    ]
    assert rendered(messages=turns) == turns


def test_the_assistants_last_message_is_continued() -> None:
    request = chat(messages=[USER, {"role": "assistant", "content": [text("So "), text("it")]}])
    assert request.continue_final_message is True
    assert request.messages[-1].rendered()["content"] == "So it"
    assert chat().continue_final_message is None


@pytest.mark.parametrize(
    ("choice", "tool_choice", "parallel"),
    [
        (None, None, None),
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "add"}, {"type": "function", "function": {"name": "add"}}, None),
    ],
)
def test_tools(choice: Any, tool_choice: Any, parallel: bool | None) -> None:
    request = chat(tools=[ADD | {"strict": True, "type": "custom"}], tool_choice=choice)
    (tool,) = request.tools or ()
    assert (tool.function.name, tool.function.description) == ("add", "Adds.")
    assert (tool.function.parameters, tool.function.strict) == (ADD["input_schema"], True)
    assert msgspec.to_builtins(request.tool_choice) == tool_choice
    assert request.parallel_tool_calls is parallel


@pytest.mark.parametrize(
    ("thinking", "effort", "budget", "told"),
    [
        (None, None, None, None),
        ({"type": "disabled"}, "none", None, None),
        ({"type": "enabled", "budget_tokens": 399}, "medium", 399, True),
        ({"type": "adaptive"}, "medium", None, True),
        ({"type": "adaptive", "display": "omitted"}, "medium", None, False),
    ],
)
def test_thinking(thinking: Any, effort: str | None, budget: int | None, told: bool | None) -> None:
    request = chat(thinking=thinking)
    assert request.reasoning_effort == effort
    assert request.thinking_token_budget == budget
    assert request.include_reasoning is told


def test_a_budget_of_thoughts_between_calls_may_be_more_than_one_message() -> None:
    request = chat(thinking={"type": "enabled", "budget_tokens": 9_000}, tools=[ADD])
    assert request.thinking_token_budget == 9_000


def test_sampling_and_form() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    request = chat(
        temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["a", "b"], stream=True,
        output_config={"effort": "high", "format": form},
        metadata={"user_id": "u"}, service_tier="auto", cache_control={"type": "ephemeral"},
        context_management={"edits": []}, betas=["x"], chat_template_kwargs={"a": 1},
    )  # fmt: skip
    assert (request.temperature, request.top_p, request.top_k) == (0.5, 0.9, 5)
    assert (request.max_tokens, request.stream, request.stop) == (400, True, ["a", "b"])
    assert msgspec.to_builtins(request.response_format)["json_schema"]["schema"] == form["schema"]
    assert chat(output_format=form).response_format == request.response_format
    assert chat(stop_sequences=[]).stop is None
    assert request.template_variables == {"a": 1}


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://t"}}
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max_tokens": None}, "max_tokens: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"messages": []}, "messages: "),
        ({"messages": [USER | {"role": "tool"}]}, "messages[0].role: "),
        ({"messages": [USER | {"content": [IMAGE]}]}, "parts of type 'image' are not supported"),
        ({"system": [IMAGE]}, "system[0].type: Invalid value 'image'"),
        (
            {"messages": [USER | {"content": [RESULT | {"content": [IMAGE]}]}]},
            "messages[0].content[0].content: parts of type 'image' are not supported",
        ),
        (
            {"messages": [USER | {"content": [{"type": "thinking", "thinking": "x"}]}]},
            "messages[0].content: a user message has no thinking blocks",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": [CALL]}]},
            "messages[1].content: an assistant's last message is continued, so it must be text",
        ),
        ({"messages": [USER] * 9_000}, "at most 16384 messages and blocks"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools[0].type: tools of type 'web_search_20250305' are not supported",
        ),
        ({"tools": [{"name": "add"}]}, "tools[0].input_schema: input_schema is missing"),
        ({"tools": [ADD, ADD]}, "tools: two tools have one name"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}}, "no tool 'sub'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: 'any' needs tools"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type: Invalid value 'between_tools'"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens is missing"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 64}, "max_tokens": 64},
            "thinking.budget_tokens: must be less than max_tokens (64)",
        ),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers: not supported"),
        ({"thread": {"type": "create"}}, "thread: not supported"),
        ({"container": "c"}, "container: not supported"),
        ({"stop_sequences": [""]}, "stop_sequences[0]: "),
        ({"model": None}, "model: "),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse("messages", msgspec.json.encode(asked(**body)))
    assert refused.value.status == 400
    assert message in str(refused.value)


def test_counting_takes_the_fields_of_a_prompt() -> None:
    request = parse("count_tokens", msgspec.json.encode({"model": "m", "messages": [USER]}))
    assert isinstance(request, CountTokensRequest)
    assert chat_of(request).max_tokens is None


def test_errors_name_the_fields_of_the_request() -> None:
    schema = "response_format.json_schema.schema"
    with pytest.raises(ApiError, match=r"^output_config.format.schema: bad$") as renamed:  # noqa: SIM117
        with client_field_names():
            raise ApiError(400, f"{schema}: bad", param=schema, code="c")
    assert renamed.value.param == "output_config.format.schema"
    assert renamed.value.code == "c"
    with pytest.raises(ApiError, match=r"^temperature: bad$"), client_field_names():
        raise ApiError(400, "temperature: bad", param="temperature")


WORDS = st.sampled_from(["", "add", "so it is"])
OBJECTS = st.dictionaries(WORDS, st.none() | st.integers() | WORDS | st.lists(WORDS), max_size=3)
FORMS = st.fixed_dictionaries({"type": st.just("json_schema"), "schema": OBJECTS})


def typed(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=fields)


TEXTS = WORDS | st.lists(typed("text", text=WORDS), max_size=2)
BLOCKS = st.lists(
    typed("text", text=WORDS)
    | typed("thinking", thinking=WORDS, signature=WORDS)
    | typed("redacted_thinking", data=WORDS)
    | typed("tool_use", id=WORDS, name=WORDS, input=OBJECTS)
    | typed("tool_result", tool_use_id=WORDS, content=TEXTS, is_error=st.booleans()),
    max_size=3,
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": WORDS | BLOCKS}
)
FIELDS = {
    "system": TEXTS,
    "tools": st.lists(st.fixed_dictionaries({"name": WORDS, "input_schema": OBJECTS}), max_size=2),
    "tool_choice": st.sampled_from(["auto", "any", "none", "tool"]).flatmap(
        lambda kind: typed(kind, name=WORDS, disable_parallel_tool_use=st.booleans())
    ),
    "thinking": st.sampled_from(["enabled", "adaptive", "disabled"]).flatmap(
        lambda kind: typed(kind, budget_tokens=st.integers(0, 9))
    ),
    "output_config": st.fixed_dictionaries({}, optional={"format": FORMS}),
    "output_format": FORMS,
    "stop_sequences": st.lists(WORDS, max_size=2),
    "thread": st.booleans(),
}


@given(
    turns=st.lists(TURNS, min_size=1, max_size=4),
    fields=st.fixed_dictionaries({}, optional=FIELDS),
)
def test_any_request_is_a_chat_or_a_400(
    turns: list[dict[str, Any]], fields: dict[str, Any]
) -> None:
    body = msgspec.json.encode(asked(messages=turns, **fields))
    try:
        request = parse("messages", body)
    except ApiError as error:
        assert error.status == 400  # noqa: PT017
        return
    assert isinstance(request, MessagesRequest)
    found = chat_of(request)
    for message in found.messages:
        message.rendered()
    assert isinstance(parse("chat", msgspec.json.encode(found)), ChatRequest)
