"""Which keywords of JSON Schema are enforced, which are annotations and which are refused: by the
compiler that serves them, and as docs/api.md says."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from coordinator.text import grammars
from coordinator.text.grammars import BadGrammar, problem
from coordinator.text.json_schemas import compilable
from coordinator.text.string_formats import FORMATS
from tests.coordinator.text.test_grammars import TOKENIZER

ENFORCED, ANNOTATION, REFUSED = "enforced", "annotation", "refused"
INT: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
TEXT: dict[str, Any] = {"type": "string"}
OBJECT: dict[str, Any] = {"type": "object"}
LIST: dict[str, Any] = {"type": "array"}
DEFS = {"$defs": {"a": INT}}
NESTED = {"$defs": {"a": {"anyOf": [INT, {**LIST, "items": {"$ref": "#/$defs/a"}}]}}}
URL = "https://example.com/schema"


@dataclass(frozen=True)
class Case:
    """``good`` fits the schema, ``bad`` does not."""

    schema: Any
    good: Any
    bad: Any


CASES = {
    "`type`": Case({"type": ["integer", "null"]}, None, "a"),
    "`enum`": Case({"enum": [1, "a", [2]]}, [2], 2),
    "`const`": Case({"const": {"a": [1]}}, {"a": [1]}, {"a": [2]}),
    "`$ref` within the schema": Case({"$ref": "#/$defs/a", **DEFS}, 1, "a"),
    "recursive ones": Case({"$ref": "#/$defs/a", **NESTED}, [[1]], ["a"]),
    "`title`": Case({"title": "a", "minimum": 3}, 4, None),
    "`description`": Case({"description": "a"}, 4, None),
    "`default`": Case({"default": 3}, 4, None),
    "`examples`": Case({"examples": [3]}, 4, None),
    "unknown keywords": Case({"nullable": True, "x": {}}, 4, None),
    "`$ref` to another document": Case({"$ref": URL}, 1, None),
    "`$dynamicRef`": Case({"$dynamicRef": "#a"}, 1, None),
    "`minimum`": Case({**INT, "minimum": 3}, 3, 2),
    "`maximum`": Case({**NUMBER, "maximum": 3.5}, 3.5, 3.6),
    "`exclusiveMinimum`": Case({**NUMBER, "exclusiveMinimum": 3}, 3.1, 3),
    "`exclusiveMaximum`": Case({**INT, "exclusiveMaximum": 3}, 2, 3),
    "`multipleOf`": Case({**INT, "multipleOf": 5}, 15, 16),
    "`minLength`": Case({**TEXT, "minLength": 2}, "ab", "a"),
    "`maxLength`": Case({**TEXT, "maxLength": 2}, "ab", "abc"),
    "`pattern`": Case({**TEXT, "pattern": "^a+b"}, "aabx", "xab"),
    "other formats": Case({**TEXT, "format": "json-pointer"}, "a", 1),
    "`contentEncoding`": Case({**TEXT, "contentEncoding": "base64"}, "%", 1),
    "`contentMediaType`": Case({**TEXT, "contentMediaType": "application/json"}, "{", 1),
    "look-around": Case({**TEXT, "pattern": "^(?=a)"}, "a", "b"),
    "backreferences": Case({**TEXT, "pattern": r"^(a)\1"}, "aa", "b"),
    r"`\b` in `pattern`": Case({**TEXT, "pattern": r"\ba"}, "a", "b"),
    "`properties`": Case({**OBJECT, "properties": {"a": INT}}, {"a": 1}, {"a": "x"}),
    "`required`": Case({**OBJECT, "required": ["a"]}, {"a": 1}, {}),
    "`additionalProperties`": Case({**OBJECT, "additionalProperties": INT}, {"b": 1}, {"b": "x"}),
    "`patternProperties`": Case(
        {**OBJECT, "patternProperties": {"^x": INT}}, {"x": 1}, {"x": "a"}
    ),
    "`minProperties` and `maxProperties` where all `properties` are required": Case(
        {**OBJECT, "minProperties": 1, "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1}
    ),
    "`propertyNames`": Case({**OBJECT, "propertyNames": {"maxLength": 1}}, {}, {"ab": 1}),
    "`dependentRequired`": Case({**OBJECT, "dependentRequired": {"a": ["b"]}}, {}, {"a": 1}),
    "`dependentSchemas`": Case({**OBJECT, "dependentSchemas": {"a": False}}, {}, {"a": 1}),
    "`unevaluatedProperties`": Case({**OBJECT, "unevaluatedProperties": False}, {}, {"a": 1}),
    "`items`": Case({**LIST, "items": INT}, [1], ["a"]),
    "`prefixItems`": Case({**LIST, "prefixItems": [INT, TEXT]}, [1, "a"], ["a"]),
    "`minItems`": Case({**LIST, "minItems": 2}, [1, 2], [1]),
    "`maxItems`": Case({**LIST, "maxItems": 2}, [1, 2], [1, 2, 3]),
    "`uniqueItems`": Case({**LIST, "uniqueItems": True}, [1, 2], [1, 1]),
    "`contains`": Case({**LIST, "contains": INT}, [1, "a"], ["a"]),
    "`unevaluatedItems`": Case({**LIST, "unevaluatedItems": False}, [], [1]),
    "`anyOf`": Case({"anyOf": [INT, TEXT]}, "a", None),
    "`allOf`": Case({"allOf": [INT, {"minimum": 3}]}, 3, 2),
    "`oneOf` of schemas that exclude each other": Case({"oneOf": [INT, TEXT]}, "a", None),
    "other `oneOf`": Case({"oneOf": [INT, {"minimum": 3}]}, 1, 5),
    "`not`": Case({"not": TEXT}, 1, "a"),
    "`if`": Case({"if": INT, "then": {"minimum": 3}, "else": TEXT}, 3, 1),
}  # fmt: skip
EXAMPLES = {
    "date": "2024-01-02", "time": "10:11:12Z", "date-time": "2024-01-02T10:11:12Z",
    "duration": "P1D", "email": "a@b.c", "hostname": "a.b", "ipv4": "1.2.3.4", "ipv6": "::1",
    "uri": "http://a.b/c", "uuid": "123e4567-e89b-12d3-a456-426614174000",
}  # fmt: skip


def verdict(case: Case) -> str:
    try:
        grammar = grammars.json_schema(case.schema)
    except BadGrammar:
        return REFUSED
    if problem(grammar, TOKENIZER):
        return REFUSED
    assert allows(grammar, case.good)
    return ANNOTATION if allows(grammar, case.bad) else ENFORCED


def allows(grammar: str, value: Any) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar)
    ids = TOKENIZER.tokenize_str(json.dumps(value))
    return bool(matcher.consume_tokens(ids) and matcher.is_accepting())


def documented() -> dict[str, str]:
    """What the table in docs/api.md says of each keyword."""
    text = Path("docs/api.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?:any value|numbers|strings|objects|arrays|several) \|(.*)\|$", text, re.M
    )
    found = {}
    for row in rows:
        for said, cell in zip((ENFORCED, ANNOTATION, REFUSED), row.split("|"), strict=True):
            found |= {name: said for name in cell.strip().split(", ") if name}
    return found


def test_keywords_are_as_documented() -> None:
    formats = {f"`{name}`": ENFORCED for name in FORMATS}
    found = {name: verdict(case) for name, case in CASES.items()}
    annotations = {"other formats", "`contentEncoding`", "`contentMediaType`"}
    found |= dict.fromkeys(annotations, ANNOTATION)
    assert documented() == found | formats


def test_annotations_of_a_string_leave_it_a_string() -> None:
    for name in ("other formats", "`contentEncoding`", "`contentMediaType`"):
        assert verdict(CASES[name]) == ENFORCED


@pytest.mark.parametrize("name", FORMATS)
def test_the_compiler_knows_the_formats_of_ours(name: str) -> None:
    assert verdict(Case({**TEXT, "format": name}, EXAMPLES[name], "%")) == ENFORCED


def test_booleans_are_schemas() -> None:
    assert verdict(Case(True, {"a": [1]}, 3)) == ANNOTATION
    with pytest.raises(BadGrammar, match="nothing"):
        grammars.json_schema(False)


def test_what_says_nothing_does_no_harm() -> None:
    assert verdict(Case({**LIST, "uniqueItems": False}, [1, 1], 1)) == ENFORCED
    named = {"properties": {"format": TEXT}, "required": ["format"]}
    assert verdict(Case({**OBJECT, **named}, {"format": "x"}, {"format": 1})) == ENFORCED
    assert verdict(Case({"const": {"format": "x"}}, {"format": "x"}, {})) == ENFORCED


def test_the_number_of_properties_is_refused_where_some_are_optional() -> None:
    schema = {**OBJECT, "properties": {"a": INT}, "maxProperties": 2}
    assert verdict(Case(schema, {}, {"a": "x"})) == REFUSED


def test_properties_come_in_the_order_of_the_schema() -> None:
    schema = {**OBJECT, "properties": {"a": INT, "b": INT}, "required": ["a", "b"]}
    grammar = grammars.json_schema(schema)
    assert allows(grammar, {"a": 1, "b": 1})
    assert not allows(grammar, {"b": 1, "a": 1})


def test_a_property_may_be_called_like_a_keyword() -> None:
    uri, text = {"type": "string", "format": "uri-reference"}, {"type": "string"}
    named = {"default": uri, "enum": uri, "uniqueItems": False}
    found = compilable({"properties": named, "default": uri, "uniqueItems": False})
    properties = {"default": text, "enum": text, "uniqueItems": False}
    assert found == {"properties": properties, "default": uri}
