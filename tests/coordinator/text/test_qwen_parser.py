"""Tool calls are found in the text of an output, however it is cut into pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.text.answer_parser import Divided, ThoughtDivider
from coordinator.text.call_parser import CallParser
from coordinator.text.qwen_parser import QwenParser
from coordinator.text.tool_events import Arguments, CallBegins, Content
from coordinator.text.tool_values import ALL_TYPES, as_json, types_of

PARAMETERS: dict[str, dict[str, Any]] = {
    "add": {"properties": {"a": {"type": "integer"}, "b": {"type": "number"}}},
    "note": {"properties": {"text": {"type": "string"}, "tags": {"type": "array"}}},
}


def call(name: str, **values: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def parsed(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """``parsed_by`` a parser of this form."""
    return parsed_by(QwenParser(PARAMETERS), pieces)


def parsed_by(parser: CallParser, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The content, and name and arguments of each call."""
    events = [event for piece in pieces for event in parser.push(piece)] + list(parser.flush())
    content, calls = "", []
    for event in events:
        match event:
            case Content(text):
                content += text
            case CallBegins(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case Arguments(index, text):
                assert index == len(calls) - 1
                calls[index] = calls[index][0], calls[index][1] + text
    return content, calls


def cut(text: str, places: list[int]) -> list[str]:
    at = sorted({place % (len(text) + 1) for place in places})
    return [text[i:j] for i, j in zip([0, *at], [*at, len(text)], strict=True)]


@given(
    places=st.lists(st.integers(0, 10_000), max_size=30),
    note=st.text(max_size=40).filter(lambda text: "</" not in text),
)
def test_the_pieces_do_not_matter(places: list[int], note: str) -> None:
    text = (
        "Let me see.\n\n"
        + call("add", a="5", b="-2.5")
        + "\n"
        + call("note", text=note, tags="[1]")
    )
    content, calls = parsed(cut(text, places))
    assert content == "Let me see."
    assert [name for name, _ in calls] == ["add", "note"]
    assert json.loads(calls[0][1]) == {"a": 5, "b": -2.5}
    assert json.loads(calls[1][1]) == {"text": note, "tags": [1]}


@given(text=st.text("<tool_cal>\n fun=x/pr", max_size=60), places=st.lists(st.integers(0, 99)))
def test_no_text_makes_it_stumble_and_text_without_a_call_is_kept(
    text: str, places: list[int]
) -> None:
    whole, pieces = parsed([text]), parsed(cut(text, places))
    assert whole == pieces
    if "<tool_call>" not in text:
        assert whole == (text, [])


def test_strings_stream_and_other_values_come_whole() -> None:
    parser = QwenParser(PARAMETERS)
    parser.push("<tool_call>\n<function=note>\n<parameter=text>\n")
    assert parser.push('one "two"\n') == [Arguments(0, '"text": "'), Arguments(0, 'one \\"two\\"')]
    assert parser.push("three") == [Arguments(0, "\\nthree")]
    assert parser.push("\n</parameter>\n<parameter=tags>\n[1,") == [
        Arguments(0, '"'), Arguments(0, ', "tags": '),
    ]  # fmt: skip
    assert parser.push("2]\n</parameter>\n") == [Arguments(0, "[1, 2]")]


def test_a_call_that_is_cut_off_keeps_what_it_has() -> None:
    assert parsed(["a <tool_call>\n<function=note>\n<parameter=text>\nhal"]) == (
        "a", [("note", '{"text": "hal')],
    )  # fmt: skip
    assert parsed(["a <tool_call>\n<func"]) == ("a<tool_call>\n<func", [])


def test_a_call_after_an_opening_tag_without_one_is_found() -> None:
    text = f"<tool_call>no<tool_call> {call('add', a='5')}"
    for pieces in ([text], cut(text, [13]), list(text)):
        content, calls = parsed(pieces)
        assert (content, calls) == ("<tool_call>no<tool_call>", [("add", '{"a": 5}')])


def test_what_breaks_the_format_is_text() -> None:
    assert parsed(['<tool_call>\n{"name": 1}'])[0] == '<tool_call>\n{"name": 1}'
    odd = "<tool_call><function=add>x<parameter=a>1</parameter>y</function>z</tool_call>"
    assert parsed([odd]) == ("", [("add", '{"a": 1}')])


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5),
        ("5", {"type": "number"}, 5),
        ("True", {"type": "boolean"}, True),
        ("null", {"type": ["string", "null"]}, None),
        ("nothing", {"type": ["string", "null"]}, "nothing"),
        ("{'a': [1]}", {"type": "object"}, {"a": [1]}),
        ("oops", {"type": "object"}, "oops"),
        ("NaN", {"type": "number"}, "NaN"),
        ("7.2e0685", {"type": "number"}, float("inf")),
        ("1e5", {"type": "integer"}, 100_000),
        ("7", {"type": "string"}, "7"),
        ("7", {}, 7),
        ("b", {"enum": ["a", "b"]}, "b"),
        ("2", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 2),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
        (r'["\ud83d\ude42", "\ud83d", "\\ud83d"]', {"type": "array"}, ["🙂", "\ufffd", r"\ud83d"]),
    ],
)
def test_values_have_the_types_of_the_schema(text: str, schema: Any, expected: Any) -> None:
    assert json.loads(as_json(text, types_of(schema, schema))) == expected


_DEFINITIONS = {
    "Level": {"enum": ["1", "2"]},
    "Item": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Item"}}},
    "a/b~c": {"type": "integer"},
    "One": {"anyOf": [{"$ref": "#/$defs/Other"}, {"type": "string"}]},
    "Other": {"anyOf": [{"$ref": "#/$defs/One"}, {"type": "null"}]},
    "Itself": {"$ref": "#/$defs/Itself"},
    "Wide": {"anyOf": [{"$ref": "#/$defs/Wider"}] * 40},
    "Wider": {"anyOf": [{"$ref": "#/$defs/Wide"}, {"$ref": "#/$defs/Level"}] * 40},
}
_DEEP: Any = {"type": "null"}
for _ in range(300):
    _DEEP = {"anyOf": [_DEEP]}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"anyOf": [{"$ref": "#/$defs/Level"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}]}, {"object", "null"}),
        ({"allOf": [{"$ref": "#/$defs/Level"}], "default": "1"}, {"string"}),
        ({"allOf": [{"type": "number"}, {"type": ["integer", "null"]}]}, {"integer"}),
        ({"type": "number", "allOf": [{"type": "string"}]}, {"number"}),
        ({"anyOf": [{"$ref": "#/$defs/a~1b~0c"}]}, {"integer"}),
        ({"$ref": "#/$defs/One"}, {"string", "null"}),
        ({"$ref": "#/$defs/Wide"}, {"string"}),
        ({"$ref": "#/$defs/Itself"}, ALL_TYPES),
        ({"anyOf": [{"$ref": "#/$defs/Nowhere"}, {"type": "null"}]}, ALL_TYPES),
        (_DEEP, ALL_TYPES),
    ],
)
def test_the_types_of_what_a_schema_refers_to_are_known(schema: Any, types: set[str]) -> None:
    assert types_of(schema, {"$defs": _DEFINITIONS}) == types


def test_parameters_may_be_a_reference_as_a_whole() -> None:
    parameters = {"$ref": "#/$defs/Args", "$defs": {"Args": PARAMETERS["add"]}}
    parser = QwenParser({"add": parameters})
    events = [*parser.push(call("add", a="5", b="7.5")), *parser.flush()]
    arguments = "".join(each.text for each in events if isinstance(each, Arguments))
    assert json.loads(arguments) == {"a": 5, "b": 7.5}


def test_a_parameter_that_may_be_left_out_has_the_type_of_its_definition() -> None:
    value = {"anyOf": [{"$ref": "#/$defs/Level"}, {"type": "null"}]}
    schema = {"$defs": _DEFINITIONS, "properties": {"level": value, "other": value}}
    text = "<tool_call>\n<function=f>\n<parameter=level>\n1\n</parameter>\n"
    text += "<parameter=other>\nnull\n</parameter>\n</function>\n</tool_call>"
    parser = QwenParser({"f": schema})
    events = [*parser.push(text), *parser.flush()]
    arguments = "".join(each.text for each in events if isinstance(each, Arguments))
    assert json.loads(arguments) == {"level": "1", "other": None}


@given(places=st.lists(st.integers(0, 99), max_size=12))
def test_a_thought_is_divided_from_the_answer(places: list[int]) -> None:
    divider = ThoughtDivider()
    found = [divider.push(piece) for piece in cut("\nI </thin think.\n</think>\n\nYes. \n", places)]
    found.append(divider.flush())
    assert "".join(each.thought for each in found) == "I </thin think."
    assert "".join(each.answer for each in found) == "Yes. \n"


def test_a_thought_without_an_end_is_all_thought() -> None:
    divider = ThoughtDivider()
    assert divider.push("so </thi") == Divided("so")
    assert divider.flush() == Divided(" </thi")
    assert divider.push("more") == Divided("more")
