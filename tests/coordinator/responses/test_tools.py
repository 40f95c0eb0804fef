"""Namespaces of functions and hosted tools in requests for responses, as Codex sends them."""

import json
from typing import Any

import httpx
import pytest

from coordinator.http.preparation import parse
from coordinator.http.request_schemas import ChatRequest
from coordinator.http.responses.request import ResponseRequest
from coordinator.http.responses.turn import turn_of
from tests.coordinator.answers import check_error
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.responses.grammar import check
from tests.coordinator.responses.sdk import create, parsed, shape, stream

WARNING = "x-baton-warning"
EVENT: dict[str, Any] = {
    "type": "function",
    "name": "create_event",
    "description": "Create an event.",
    "parameters": {"type": "object", "properties": {"title": {"type": "string"}}},
    "strict": False,
}
CALENDAR: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__calendar",
    "description": "Plan events.",
    "tools": [EVENT, {**EVENT, "name": "drop_event"}],
}
SEARCH = {"type": "web_search", "external_web_access": False}
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
JOINED = "mcp__calendar__create_event"
CALL = (
    f"<tool_call>\n<function={JOINED}>\n<parameter=title>\nTea\n</parameter>\n"
    "</function>\n</tool_call>"
)


async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/responses", json={"input": "Hi", **body})


async def test_a_call_names_its_namespace(says: Says, client_of: ClientOf) -> None:
    core = says(CALL)
    client = client_of(core)
    response = await create(client, tools=[CALENDAR, ADD])
    (call,) = response.output
    assert call.type == "function_call"
    assert (call.namespace, call.name) == ("mcp__calendar", "create_event")
    assert (call.arguments, call.status) == ('{"title": "Tea"}', "completed")
    items = check(await stream(client, tools=[CALENDAR, ADD]))
    assert list(map(shape, items)) == list(map(shape, response.output))
    assert [tool.type for tool in response.tools] == ["namespace", "function"]


def test_the_model_sees_joined_names() -> None:
    chat = chat_of(tools=[CALENDAR, ADD])
    told = [(tool.function.name, tool.function.description) for tool in chat.tools or ()]
    assert told == [
        (JOINED, "Plan events.\n\nCreate an event."),
        ("mcp__calendar__drop_event", "Create an event."),
        ("add", None),
    ]


def test_an_earlier_call_is_joined_again() -> None:
    call = {
        "type": "function_call", "call_id": "c1", "namespace": "mcp__calendar",
        "name": "create_event", "arguments": "{}",
    }  # fmt: skip
    result = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    user = {"role": "user", "content": "go"}
    chat = chat_of(input=[user, call, result], tools=[CALENDAR])
    (earlier,) = chat.messages[1].tool_calls or ()
    assert earlier.function.name == JOINED


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "create_event"},
        {"type": "function", "name": "create_event", "namespace": "mcp__calendar"},
        {"type": "function", "name": JOINED},
        {"type": "allowed_tools", "mode": "required",
         "tools": [{"type": "function", "name": "create_event"}]},
    ],
)  # fmt: skip
async def test_a_choice_finds_the_function(
    says: Says, client_of: ClientOf, choice: dict[str, Any]
) -> None:
    core = says(CALL)
    answer = await post(client_of(core), tools=[CALENDAR, ADD], tool_choice=choice)
    assert answer.json()["output"][0]["namespace"] == "mcp__calendar"
    constraint = core.streams[0].spec.sampling.constraint
    assert constraint is not None
    assert JOINED in constraint.grammar
    assert "drop_event" not in constraint.grammar


def test_all_functions_of_a_namespace_are_allowed() -> None:
    allowed = [{"type": "namespace", "name": "mcp__calendar"}, {"type": "web_search"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    chat = chat_of(tools=[CALENDAR, ADD, SEARCH], tool_choice=choice)
    names = [tool.function.name for tool in chat.tools or ()]
    assert names == [JOINED, "mcp__calendar__drop_event"]
    assert chat.tool_choice == "auto"


async def test_hosted_tools_are_ignored_with_a_warning(says: Says, client_of: ClientOf) -> None:
    core = says("ok")
    answer = await post(client_of(core), tools=[ADD, SEARCH])
    assert answer.status_code == 200, answer.text
    assert answer.headers[WARNING] == "tools[1]: this server does not run web_search; it is ignored"
    assert [tool.type for tool in parsed(answer.content).tools] == ["function"]
    streamed = await post(client_of(core), tools=[ADD, SEARCH], stream=True)
    assert "web_search" in streamed.headers[WARNING]
    assert WARNING not in (await post(client_of(core), tools=[ADD])).headers


@pytest.mark.parametrize(
    ("fields", "param", "says_why"),
    [
        ({"tools": [SEARCH], "tool_choice": {"type": "web_search"}}, "tool_choice.type",
         "does not run 'web_search'"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "tool_choice", "needs a function"),
        ({"tools": [{"type": "custom", "name": "patch"}]}, "tools[0].type", "'custom'"),
        ({"tools": [{**CALENDAR, "tools": [{"type": "custom", "name": "x"}]}]},
         "tools[0].tools[0].type", "'custom'"),
        ({"tools": [{**CALENDAR, "tools": [SEARCH]}]}, "tools[0].tools[0].type", "web_search"),
        ({"tools": [{**CALENDAR, "name": "n" * 120}]}, "tools", "more than 128"),
        ({"tools": [CALENDAR, {**CALENDAR, "name": "crm"}],
          "tool_choice": {"type": "function", "name": "create_event"}}, "tool_choice",
         "more than one tool"),
        ({"tools": [CALENDAR], "tool_choice": {"type": "function", "name": "mul"}},
         "tool_choice", "no tool 'mul'"),
    ],
)  # fmt: skip
async def test_what_cannot_be_served_is_named(
    checked_client: httpx.AsyncClient, fields: dict[str, Any], param: str, says_why: str
) -> None:
    error = check_error(await post(checked_client, **fields), 400, param)
    assert says_why in error["message"]


def chat_of(**body: Any) -> ChatRequest:
    request = parse("response", json.dumps({"input": "Hi", **body}).encode())
    assert isinstance(request, ResponseRequest)
    return turn_of(request, b"")[0]
