"""Schemas of tools with keywords that no grammar enforces: left out with a warning, or refused if
the tool is strict."""

from typing import Any

import httpx
import pytest

from coordinator.text.forms import Form, Verdict, verdict
from tests.coordinator.answers import CHAT, USER, check_error
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.text.test_grammars import TOKENIZER, allows, call

INT: dict[str, Any] = {"type": "integer"}
TEXT: dict[str, Any] = {"type": "string"}
LIST: dict[str, Any] = {"type": "array", "items": INT}
OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": False}
PROPERTY = "parameters.properties.x"

CASES: list[tuple[Any, str, str, str]] = [
    ({**LIST, "uniqueItems": True}, f"{PROPERTY}.uniqueItems", "[1, 1]", '["a"]'),
    ({**LIST, "contains": {"minimum": 3}}, f"{PROPERTY}.contains", "[1]", '["a"]'),
    ({"type": "object", "additionalProperties": INT, "propertyNames": {"maxLength": 1}},
     f"{PROPERTY}.propertyNames", '{"ab": 1}', '{"ab": "x"}'),
    ({**LIST, "items": {"oneOf": [INT, {"type": "number", "minimum": 3}]}},
     f"{PROPERTY}.items.oneOf", "[5, 3.5]", "[1.5]"),
    ({**TEXT, "pattern": "^(?!b)[a-c]+$"}, f"{PROPERTY}.pattern", "bd", "</parameter>"),
    ({**TEXT, "pattern": "^(?=a)", "minLength": 2}, f"{PROPERTY}.pattern", "bd", "b"),
    ({**LIST, "items": {**TEXT, "pattern": r"^(a)\1$", "maxLength": 2}},
     f"{PROPERTY}.items.pattern", '["bc"]', '["bcd"]'),
    ({**OBJECT, "patternProperties": {"^(?!b)": INT}},
     f"{PROPERTY}.patternProperties", '{"b": 1}', "[1]"),
    ({"type": "object", "properties": {"a": INT, "b": INT}, "minProperties": 1},
     f"{PROPERTY}.minProperties", "{}", '{"a": "x"}'),
    ({**INT, "not": {"not": {"minimum": 2}}}, f"{PROPERTY}.not", "1", "a"),
    ({**LIST, "items": {"$ref": "https://example.com/a"}, "minItems": 1},
     f"{PROPERTY}.items.$ref", "[[]]", "[]"),
    ({**OBJECT, "properties": {"not": {**LIST, "uniqueItems": True}}},
     f"{PROPERTY}.properties.not.uniqueItems", '{"not": [1, 1]}', '{"not": ["a"]}'),
]  # fmt: skip


def of_tool(schema: Any, *, strict: bool | None = None, **more: Any) -> Verdict:
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], **more}
    other = {"name": "other", "parameters": {"properties": {"x": INT}}, "strict": strict}
    tool = {"name": "f", "parameters": parameters, "strict": strict}
    return verdict(Form(functions=[other, tool], required=True), TOKENIZER)


@pytest.mark.parametrize(("schema", "path", "good", "bad"), CASES)
def test_what_cannot_be_enforced_is_left_out_and_the_rest_kept(
    schema: Any, path: str, good: str, bad: str
) -> None:
    found = of_tool(schema)
    assert found.problem == ""
    assert found.warnings == [f"tool 'f': {path} is not enforced"]
    assert allows(found.grammar, call("f", x=good))
    assert not allows(found.grammar, call("f", x=bad))


@pytest.mark.parametrize(("schema", "path", "good", "bad"), CASES)
def test_a_strict_tool_is_refused_by_name_and_path(
    schema: Any, path: str, good: str, bad: str
) -> None:
    found = of_tool(schema, strict=True)
    assert found.of_tools
    assert found.problem == f"tool 'f': {path} cannot be enforced, as strict requires"


@pytest.mark.parametrize(
    "schema",
    [
        {**LIST, "uniqueItems": False},
        {"oneOf": [INT, {"type": "boolean"}]},
        {**LIST, "items": {"const": {"not": 1, "uniqueItems": True}}},
        {**OBJECT, "properties": {"uniqueItems": INT, "if": INT}},
    ],
)
def test_a_schema_that_is_enforced_has_no_warning(schema: Any) -> None:
    for strict in (None, True):
        found = of_tool(schema, strict=strict)
        assert (found.problem, found.warnings) == ("", [])


def test_a_wrong_schema_is_refused_by_name_and_path() -> None:
    assert of_tool({**LIST, "items": {"type": "strange"}}).problem == (
        f"tool 'f': {PROPERTY}: Invalid type: strange"
    )
    found = of_tool({**INT, "minimum": 5, "maximum": 3})
    assert found.problem.startswith(f"tool 'f': {PROPERTY}: Unsatisfiable")


def test_definitions_are_relaxed_once() -> None:
    definitions = {
        "a": {**LIST, "items": {"oneOf": [INT, {"type": "number"}]}},
        "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "boolean"}]},
    }
    found = of_tool({"$ref": "#/$defs/b"}, **{"$defs": definitions})
    assert found.warnings == ["tool 'f': parameters.$defs.a.items.oneOf is not enforced"]
    assert allows(found.grammar, call("f", x="[1.5]"))
    assert not allows(found.grammar, call("f", x='["a"]'))


def test_a_schema_may_refer_to_all_of_itself() -> None:
    children = {"type": "array", "items": {"$ref": "#"}}
    found = of_tool(children, additionalProperties=False)
    assert (found.problem, found.warnings) == ("", [])
    assert allows(found.grammar, call("f", x='[{"x": []}]'))
    assert not allows(found.grammar, call("f", x="[[]]"))
    sibling = of_tool({**LIST, "items": {"$ref": "#/properties/y"}}, properties={
        "x": {**LIST, "items": {"$ref": "#/properties/y"}}, "y": INT,
    })  # fmt: skip
    assert sibling.problem == ""
    assert not allows(sibling.grammar, call("f", x='["a"]'))


def test_a_schema_that_never_ends_is_refused_in_words() -> None:
    found = verdict(Form("json", {"$ref": "#"}), TOKENIZER)
    assert found.problem == "it allows no text, or refers to itself without end"


def test_a_form_of_an_answer_names_the_path() -> None:
    schema = {"type": "object", "properties": {"x": {**LIST, "uniqueItems": True}}}
    found = verdict(Form("json", schema), TOKENIZER)
    assert found.problem == "properties.x.uniqueItems cannot be enforced"
    assert not found.of_tools


async def test_the_warning_is_a_header(says: Says, client_of: ClientOf) -> None:
    tools = [tool_with({**LIST, "uniqueItems": True})]
    client = client_of(says("ok"))
    for fields in ({}, {"stream": True}):
        answer = await chat(client, tools=tools, tool_choice="required", **fields)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-baton-warning"] == (
            f"tool 'f': {PROPERTY}.uniqueItems is not enforced"
        )
    answer = await chat(client, tools=tools)
    assert "x-baton-warning" not in answer.headers, "no grammar is needed"
    anthropic = {"name": "f", "input_schema": tools[0]["function"]["parameters"]}
    answer = await client.post("/v1/messages", json={
        "model": "tiny", "max_tokens": 100, "messages": USER, "tools": [anthropic],
        "tool_choice": {"type": "any"},
    })  # fmt: skip
    assert "uniqueItems" in answer.headers["x-baton-warning"]


async def test_a_strict_tool_is_an_error_of_the_request(
    checked_client: httpx.AsyncClient,
) -> None:
    tools = [tool_with({**LIST, "uniqueItems": True}, strict=True)]
    error = check_error(await chat(checked_client, tools=tools), 400, "tools")
    assert f"tool 'f': {PROPERTY}.uniqueItems" in error["message"]


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"anyOf": [{"required": ["x"]}, {"required": ["y"]}]}, "parameters.anyOf"),
        ({"minProperties": 1}, "parameters.minProperties"),
        ({"allOf": [{"properties": {"x": {}}, "required": ["x"]}]}, "parameters.allOf"),
        ({"enum": [{"x": "a"}]}, "parameters.enum"),
        ({"properties": {"x": {"type": ["string", "integer"], "pattern": "^a$"}}}, "x.pattern"),
        (
            {
                "properties": {
                    "x": {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "array"}]}
                }
            },
            "x.enum",
        ),
    ],
)
async def test_what_calls_in_tags_cannot_enforce_is_named(
    says: Says, client_of: ClientOf, schema: dict[str, Any], named: str
) -> None:
    client = client_of(says())
    properties = {"x": {"type": "string"}, "y": {"type": "integer"}}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties, **schema}}
    tool = {"type": "function", "function": function}
    answer = await chat(client, tools=[tool], tool_choice="required")
    assert f"{named} is not enforced" in answer.headers["x-baton-warning"]
    function["strict"] = True
    error = check_error(await chat(client, tools=[tool]), 400, "tools")
    assert f"{named} cannot be enforced" in error["message"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"], "pattern": "^a$"}, {"type": ["string", "integer"]},
        {"enum": ["a", 1]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    ],
)  # fmt: skip
async def test_a_strict_tool_may_take_texts_and_others(
    says: Says, client_of: ClientOf, schema: dict[str, Any]
) -> None:
    client = client_of(says())
    answer = await chat(client, tools=[tool_with(schema, strict=True)])
    assert answer.status_code == 200, answer.text
    assert "x-baton-warning" not in answer.headers


def tool_with(schema: Any, **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": schema}}
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **fields}}


async def chat(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post(CHAT, json={"messages": USER, **body})
