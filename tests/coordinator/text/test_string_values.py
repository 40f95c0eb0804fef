"""What a tool's parameter that is a string may say, by the compiler that enforces it."""

import time
from typing import Any

import pytest

from coordinator.text.grammars import BadGrammar, problem
from coordinator.text.string_formats import FORMATS
from coordinator.text.tool_grammars import tool_calls
from tests.coordinator.text.test_grammars import TOKENIZER, allows, call

TEXT = {"type": "string"}
DATE = {**TEXT, "format": "date"}
ALLOWED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({**TEXT, "pattern": "^[a-z]+$"}, ["ab"], ["aB", "", "ab\n"]),
    ({**TEXT, "pattern": "b|^c$"}, ["abc", "c"], ["cc", "x"]),
    ({**TEXT, "pattern": "[|(]|a/b"}, ["x|", "a/b"], ["x"]),
    ({**TEXT, "pattern": r"^\$$"}, ["$"], ["$$"]),
    ({**TEXT, "pattern": r"\$"}, ["a$b"], ["ab"]),
    ({**TEXT, "minLength": 2, "maxLength": 4}, ["é\n€x", "ab"], ["a", "abcde"]),
    ({**TEXT, "minLength": 1, "pattern": "^[a-z]*$"}, ["a"], ["", "A"]),
    ({**TEXT, "maxLength": 40}, ["b>", "\n"], ["a</parameter>b", "<b>"]),
    ({**TEXT, "pattern": "b"}, ["<b>", "\nb\n"], ["a</parameter>b"]),
    (TEXT, ["<b>", "\n</p", ""], ["a</parameter>b"]),
    ({**TEXT, "enum": ["a", "b\n<"]}, ["a", "b\n<"], ["c"]),
    ({"enum": ["a", 1, None]}, ["a", "1", "null"], ["2"]),
    ({"type": ["string", "null"], "pattern": "^[0-9]+$"}, ["12", "null"], ["x", ""]),
    ({"anyOf": [DATE, {"type": "null"}]}, ["2024-01-31", "null"], ["2024-02-30"]),
    ({"anyOf": [DATE, TEXT]}, ["2024-01-31", "anything"], []),
    ({**TEXT, "allOf": [{"minLength": 3}, {"pattern": "^a"}]}, ["abc"], ["ab", "xbc"]),
    ({"$ref": "#/$defs/day"}, ["2024-01-31"], ["x"]),
    ({"anyOf": [{"$ref": "#/$defs/day"}, {"type": "null"}]}, ["2024-01-31", "null"], ["x"]),
    ({"allOf": [{"$ref": "#/$defs/day"}], "title": "a day"}, ["2024-01-31"], ["x", "null"]),
    ({"anyOf": [{"$ref": "#/$defs/size"}, {"type": "null"}]}, ['{"n": 1}', "null"], ["x", "{}"]),
    ({"type": ["string", "integer"], "pattern": "^x"}, ["x", "5"], []),
    ({**TEXT, "format": "some-other"}, ["anything"], []),
]
IN_FORMAT = {
    "date": (["2024-12-31", "1999-02-28"], ["2024-13-01", "2023-02-29"]),
    "time": (["10:20:30Z", "10:20:30.5+02:00"], ["10:20", "24:00:00Z"]),
    "date-time": (["2024-01-02T03:04:05-02:00"], ["2024-01-02"]),
    "duration": (["P1Y2M", "PT5S", "P2W", "P1DT1H"], ["P", "P1DT"]),
    "email": (["a.b@c.de"], ["a@", "@b", "a b@c"]),
    "hostname": (["a.b-c.d"], ["-a", "a..b"]),
    "ipv4": (["1.2.3.255"], ["1.2.3.256", "1.2.3"]),
    "ipv6": (["::", "::1", "1:2:3:4:5:6:7:8", "1::8"], ["1:2", "1::2::3"]),
    "uri": (["http://a.b/c?d#e"], ["a", "http://a b"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
}


def grammar(schema: Any) -> str:
    size = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    definitions = {"day": DATE, "size": size}
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": definitions}
    tool = {"name": "f", "parameters": parameters}
    return tool_calls([tool], required=True, parallel=False)


@pytest.mark.parametrize(("schema", "good", "bad"), ALLOWED)
def test_a_call_keeps_to_the_keywords(
    schema: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    built = grammar(schema)
    assert [text for text in good if not allows(built, call("f", a=text))] == []
    assert [text for text in bad if allows(built, call("f", a=text))] == []


def test_every_format_has_examples() -> None:
    assert FORMATS.keys() == IN_FORMAT.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name: str) -> None:
    test_a_call_keeps_to_the_keywords({**TEXT, "format": name}, *IN_FORMAT[name])


@pytest.mark.parametrize(
    "schema",
    [
        {**TEXT, "pattern": 3},
        {**TEXT, "minLength": -1},
        {**TEXT, "maxLength": "5"},
        {"enum": ["a</parameter>"]},
    ],
)
def test_a_keyword_with_a_wrong_value_is_named(schema: dict[str, Any]) -> None:
    with pytest.raises(BadGrammar, match=r"tool 'f': parameters\.properties\.a"):
        grammar(schema)


def test_what_no_text_can_be_and_look_around_are_refused() -> None:
    assert problem(grammar({**TEXT, "minLength": 5, "maxLength": 2}), TOKENIZER)
    assert problem(grammar({**TEXT, "pattern": "^a(?=b)"}), TOKENIZER)


@pytest.mark.parametrize("key", ["allOf", "anyOf"])
def test_references_that_name_each_other_end(key: str) -> None:
    again = {"$ref": "#/properties/a"}
    began = time.process_time()
    with pytest.raises(BadGrammar, match="subschemas"):
        grammar({**TEXT, key: [again] * 3})
    assert time.process_time() - began < 1.0
