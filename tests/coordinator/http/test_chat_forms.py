"""Tool calls, thoughts and forms of an answer, through the HTTP edge."""

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from coordinator.http.prompts import chat_ids
from coordinator.http.request_schemas import ChatRequest
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error, events, post
from tests.coordinator.fake_core import ClientOf, Says
from transport.wire.sampling import Constraint

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "why": {"type": "string"}},
            "required": ["a"],
        },
    },
}
CALL = (
    "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n"
    '<parameter=why>\nso "it" is\n</parameter>\n</function>\n</tool_call>'
)
ARGUMENTS = {"a": 5, "why": 'so "it" is'}


async def test_a_tool_call_whole(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(f"Let me add.\n\n{CALL}"))
    answer = await post(client, CHAT, messages=USER, tools=[ADD])
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me add."
    assert (call["type"], call["function"]["name"]) == ("function", "add")
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    assert call["id"].startswith("call_")


async def test_tool_calls_streamed(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(f"{CALL}\n{CALL}"))
    chunks = await events(client, CHAT, messages=USER, tools=[ADD], return_token_ids=True)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    num_tokens = 0
    for chunk in chunks:
        (choice,) = chunk["choices"]
        num_tokens += len(choice["token_ids"])
        for delta in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(delta["index"], {"arguments": ""})
            call |= {key: delta[key] for key in ("id", "type") if key in delta}
            call["name"] = delta["function"].get("name", call.get("name"))
            call["arguments"] += delta["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert [call["name"] for call in calls.values()] == ["add", "add"]
    assert all(json.loads(call["arguments"]) == ARGUMENTS for call in calls.values())
    assert len({call["id"] for call in calls.values()}) == 2
    whole = await post(client, CHAT, messages=USER, tools=[ADD])
    assert num_tokens == whole["usage"]["completion_tokens"], "no token is lost where text is held"


async def test_without_tools_a_call_is_text(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(CALL))
    for fields in ({}, {"tools": []}, {"tools": [ADD], "tool_choice": "none"}):
        answer = await post(client, CHAT, messages=USER, **fields)
        assert answer["choices"][0]["message"]["content"] == CALL
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_tools_and_their_results_are_in_the_prompt() -> None:
    tokenizer = Tokenizer.load(Path("models/tiny"))
    called = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 5}'}}
    body = {
        "messages": [
            *USER,
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "1", "content": "fifty-nine"},
        ],
        "tools": [ADD],
    }
    request = msgspec.convert(body, ChatRequest)
    ids = chat_ids(tokenizer, request, request.tools or (), variables={}, max_len=10_000, salt="")
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert '"name": "add"' in text
    assert "<function=add>\n<parameter=a>\n5\n</parameter>" in text
    assert "<tool_response>\nfifty-nine\n</tool_response>" in text
    tokenizer.close()


async def test_a_thought_is_told_apart(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("two and two\n</think>\n\nfour"))
    answer = await post(client, CHAT, messages=USER, reasoning_effort="low")
    message = answer["choices"][0]["message"]
    assert message["content"] == "four"
    assert message["reasoning_content"] == message["reasoning"] == "two and two"
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in await events(client, CHAT, messages=USER, reasoning_effort="low")
    ]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "two and two"
    assert "".join(delta.get("content", "") for delta in deltas) == "four"
    hidden = await post(
        client, CHAT, messages=USER, reasoning_effort="low", include_reasoning=False
    )
    assert "reasoning_content" not in hidden["choices"][0]["message"]
    assert hidden["choices"][0]["message"]["content"] == "four"


async def test_no_effort_is_no_thought(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("four"))
    for fields in ({}, {"reasoning_effort": "none"}):
        answer = await post(client, CHAT, messages=USER, **fields)
        assert answer["choices"][0]["message"]["content"] == "four"
        assert "reasoning_content" not in answer["choices"][0]["message"]


async def constraint(
    says: Says, client_of: ClientOf, path: str = CHAT, **fields: Any
) -> Constraint | None:
    """What the core is asked for."""
    core = says("ok")
    about = {"messages": USER} if path == CHAT else {"prompt": "Hi"}
    response = await client_of(core).post(path, json={**about, **fields})
    assert response.status_code == 200, response.text
    return core.streams[-1].spec.sampling.constraint


async def test_what_is_asked_for_becomes_a_constraint(says: Says, client_of: ClientOf) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked: list[dict[str, Any]] = [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        {"structured_outputs": {"json": schema}},
        {"guided_json": schema},
        {"guided_json": json.dumps(schema)},
        {"guided_regex": "[a-z]+"},
        {"guided_choice": ["yes", "no"]},
        {"guided_grammar": 'start: "a"'},
        {"regex": "[a-z]+"},
        {"ebnf": 'root ::= "a" | "b"'},
        {"grammar": 'root ::= "a" | "b"'},
        {"json_schema": schema},
        {"json_schema": json.dumps(schema)},
        {"guided_json": json.dumps(schema), "structured_outputs": {"json": schema}},
        {"guided_regex": "[a-z]+", "structured_outputs": {"regex": "[a-z]+"}},
        {"guided_choice": ["a"], "structured_outputs": {"choice": ["a"]}},
        {"tools": [ADD], "tool_choice": "required"},
        {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "add"}}},
        {"tools": [{"type": "function", "function": {**ADD["function"], "strict": True}}]},
    ]  # fmt: skip
    for fields in asked:
        found = await constraint(says, client_of, **fields)
        assert found is not None, fields
        assert found.grammar, fields
        assert found.thought_end is None
    empty = {"regex": "", "ebnf": "", "grammar": "", "json_schema": "", "stop_regex": []}
    for fields in ({}, {"tools": [ADD]}, {"response_format": {"type": "text"}}, empty):
        assert await constraint(says, client_of, **fields) is None
    found = await constraint(says, client_of, COMPLETIONS, guided_choice=["yes"])
    assert found is not None


async def test_a_thought_comes_before_what_is_constrained(says: Says, client_of: ClientOf) -> None:
    fields = {"guided_choice": ["yes"], "reasoning_effort": "high", "thinking_token_budget": 9}
    found = await constraint(says, client_of, **fields)
    assert found is not None
    assert found.thought_end is not None
    assert found.thought_budget == 9
    assert found.closing_ids[-1] == found.thought_end
    assert found.answer_ids
    budget = await constraint(says, client_of, reasoning_effort="high", thinking_token_budget=0)
    assert budget is not None
    assert budget.grammar == ""
    assert await constraint(says, client_of, thinking_token_budget=9) is None, "it does not think"


NESTED: dict[str, Any] = {"type": "integer"}
for _ in range(300):
    NESTED = {"type": "object", "properties": {"a": NESTED}, "required": ["a"]}
REMOTE = {"$ref": "https://example.com/schema"}
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tools[0].function.name", {"tools": [{"function": {"name": "a b"}}]}),
    ("tools", {"tools": [ADD, ADD]}),
    ("tools", {"tools": [{"function": {"name": f"f{i}"}} for i in range(10_000)]}),
    ("tools", {"tools": [{"function": {"name": "f", "parameters": {"required": ["x"]}}}],
               "tool_choice": "required"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [ADD], "tool_choice": {"function": {"name": "sub"}}}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    ("response_format.type", {"response_format": {"type": "xml"}}),
    ("response_format.json_schema.schema",
     {"response_format": {"type": "json_schema", "json_schema": {"schema": REMOTE}}}),
    ("response_format.json_schema.schema",
     {"response_format": {"type": "json_schema", "json_schema": {"schema": NESTED}}}),
    ("guided_json", {"guided_json": "{"}),
    ("guided_json", {"guided_json": {"type": "strange"}}),
    ("guided_regex", {"guided_regex": "("}),
    ("guided_regex", {"guided_regex": "a" * 300_000}),
    ("guided_choice", {"guided_choice": []}),
    ("guided_grammar", {"guided_grammar": "start: nothing"}),
    ("structured_outputs.grammar", {"structured_outputs": {"grammar": "root ::= ("}}),
    ("guided_regex", {"guided_json": {}, "guided_regex": "a"}),
    ("guided_choice", {"guided_choice": ["a"], "structured_outputs": {"choice": ["b"]}}),
    ("regex", {"regex": "(?=a)"}),
    ("regex", {"regex": "a", "response_format": {"type": "json_object"}}),
    ("ebnf", {"ebnf": "root ::= ("}),
    ("grammar", {"grammar": 'root ::= "'}),
    ("json_schema", {"json_schema": {"type": "strange"}}),
    ("stop_regex", {"stop_regex": "a+"}),
    ("grammar_lazy", {"grammar": 'root ::= "a"', "grammar_lazy": True}),
    ("min_tokens", {"guided_regex": "a", "min_tokens": 2}),
    ("thinking_token_budget", {"thinking_token_budget": -2}),
    ("reasoning_effort", {"reasoning_effort": "huge"}),
]  # fmt: skip


@pytest.mark.parametrize(("param", "fields"), FORMS)
async def test_a_form_that_cannot_be_had_is_refused_by_name(
    checked_client: httpx.AsyncClient, param: str, fields: dict[str, Any]
) -> None:
    check_error(await checked_client.post(CHAT, json={"messages": USER, **fields}), 400, param)
