"""What the grammars let pass, by the compiler that serves them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from coordinator.text import grammars
from coordinator.text.grammars import BadGrammar, problem
from coordinator.text.tool_grammars import tool_calls

TOKENIZER = LLTokenizer(Path("models/tiny/tokenizer.json").read_text())
ADD = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"$ref": "#/$defs/n"},
            "why": {"type": "string"},
        },
        "required": ["a", "b"],
        "$defs": {"n": {"type": "integer", "maximum": 99}},
    },
}
UNIT = {"name": "unit", "parameters": {"properties": {"u": {"enum": ["m", "km"]}}}}
NOW = {"name": "now"}


def allows(grammar: str, text: str) -> bool:
    """Whether ``text`` is all that the grammar wants."""
    assert problem(grammar, TOKENIZER) == ""
    matcher = LLMatcher(TOKENIZER, grammar)
    ids = TOKENIZER.tokenize_str(text, parse_special=True)
    return matcher.validate_tokens(ids) == len(ids) and (
        matcher.consume_tokens(ids) and matcher.is_accepting()
    )


def call(name: str, **values: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def test_json() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    strict = grammars.json_schema({**schema, "additionalProperties": False})
    assert allows(strict, '{"a": 5}')
    assert allows(strict, '{\n  "a":5\n}')
    assert not allows(strict, '{"a": 5, "b": 1}')
    assert not allows(strict, '{"a":' + " " * 60 + "5}")
    assert allows(grammars.json_object(), '{"x": [1, {"y": null}]}')
    assert not allows(grammars.json_object(), "[1]")


def test_token_ids_and_texts_that_must_not_be() -> None:
    ids = TOKENIZER.tokenize_str("some words")
    assert allows(grammars.tokens(ids), "some words")
    assert not allows(grammars.tokens(ids[1:]), "some words")
    assert not allows(grammars.tokens(ids), "")
    bad = grammars.without(["b/ad", 'wör"se'])
    assert allows(bad, "all is well: b/a")
    assert not allows(bad, "so b/ad")
    assert not allows(bad, 'wör"se, or not')


def test_regular_expressions_choices_and_grammars() -> None:
    assert allows(grammars.regex("[a-c]+"), "abc")
    assert not allows(grammars.regex("[a-c]+"), "abd")
    assert allows(grammars.choice(["yes", 'n"o\n']), 'n"o\n')
    assert not allows(grammars.choice(["yes", "no"]), "maybe")
    assert allows(grammars.context_free('start: "a" start | "b"'), "aab")
    assert allows(grammars.context_free('root ::= "x" [0-9]+'), "x12")


def test_required_calls() -> None:
    grammar = tool_calls([ADD, UNIT, NOW], required=True, parallel=True)
    assert allows(grammar, call("add", a="5", b="7"))
    assert allows(grammar, call("add", a="5", b="7", why="two\nlines </p> {"))
    assert allows(grammar, call("now") + "\n" + call("unit", u="km"))
    assert allows(grammar, call("unit"))
    assert not allows(grammar, "")
    assert not allows(grammar, "text" + call("now"))
    assert not allows(grammar, call("add", a="5"))
    assert not allows(grammar, call("add", a="x", b="7"))
    assert not allows(grammar, call("add", a="5", b="100"))
    assert not allows(grammar, call("unit", u="mm"))
    assert not allows(grammar, call("sub"))
    single = tool_calls([NOW], required=True, parallel=False)
    assert not allows(single, call("now") + "\n" + call("now"))


def test_parameters_may_be_a_reference_as_a_whole() -> None:
    value = {"type": "integer"}
    node = {"properties": {"n": value, "next": {"$ref": "#/$defs/node"}}, "required": ["n"]}
    tool = {"name": "f", "parameters": {"$ref": "#/$defs/node", "$defs": {"node": node}}}
    grammar = tool_calls([tool], required=True, parallel=False)
    assert allows(grammar, call("f", n="5"))
    assert not allows(grammar, call("f"))
    assert not allows(grammar, call("f", n="x"))


def test_calls_that_may_come() -> None:
    grammar = tool_calls([ADD], required=False, parallel=True)
    assert allows(grammar, "Nothing to add.")
    assert allows(grammar, "Let me add.\n\n" + call("add", a="5", b="7"))
    assert not allows(grammar, "Let me add.\n\n" + call("add", a="x", b="7"))


MANY = {"type": "object", "properties": {str(i): {} for i in range(99_999)}}
NOT_A_PROPERTY = {"name": "f", "parameters": {"required": ["x"]}}
REFUSED_AT_ONCE: dict[str, Callable[[], str]] = {
    "too large": lambda: grammars.json_schema(MANY),
    "too deep": lambda: grammars.json_schema(nested(300)),
    "too long": lambda: grammars.regex("a" * 10**6),
    "no choice": lambda: grammars.choice([]),
    "no tool": lambda: tool_calls([], required=True, parallel=True),
    "required": lambda: tool_calls([NOT_A_PROPERTY], required=True, parallel=True),
    "required is a number": lambda: tool_calls(
        [{"name": "f", "parameters": {"required": 5}}], required=True, parallel=True
    ),
    "required are lists": lambda: tool_calls(
        [{"name": "f", "parameters": {"required": [1, ["a"]]}}], required=True, parallel=True
    ),
}
REFUSED_BY_THE_COMPILER = {
    "remote": grammars.json_schema({"$ref": "https://example.com/schema"}),
    "no such definition": grammars.json_schema({"$ref": "#/$defs/none"}),
    "no such type": grammars.json_schema({"type": "strange"}),
    "look-ahead": grammars.json_schema({"type": "string", "pattern": "(?=x)"}),
    "unbalanced": grammars.regex("("),
    "no such rule": grammars.context_free("start: nothing"),
}
QUICK: dict[str, Any] = {
    "nested": lambda: nested(60),
    "long": lambda: {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
    "recursive": lambda: {
        "$defs": {"t": {"type": "object", "properties": {"c": {"$ref": "#/$defs/t"}}}},
        "$ref": "#/$defs/t",
    },
    "choices": lambda: {
        "anyOf": [
            {"type": "object", "properties": {f"p{i}_{j}": {"type": "string"} for j in range(20)}}
            for i in range(50)
        ]
    },
}


def nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize("name", REFUSED_AT_ONCE)
def test_what_cannot_be_served_is_refused_before_it_is_compiled(name: str) -> None:
    with pytest.raises(BadGrammar):
        REFUSED_AT_ONCE[name]()


@pytest.mark.parametrize("name", REFUSED_BY_THE_COMPILER)
def test_what_the_compiler_refuses_it_refuses_quickly(name: str) -> None:
    began = time.process_time()
    assert problem(REFUSED_BY_THE_COMPILER[name], TOKENIZER)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("name", QUICK)
def test_large_and_recursive_schemas_compile_quickly(name: str) -> None:
    began = time.process_time()
    assert problem(grammars.json_schema(QUICK[name]()), TOKENIZER) == ""
    assert time.process_time() - began < 2.0


def test_a_grammar_whose_steps_cost_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_STEP_S", 0.0)
    assert "first token" in problem(grammars.regex("a+"), TOKENIZER)


def test_an_answer_of_a_form_instead_of_calls() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for answer in (
        grammars.json_schema(schema),
        grammars.context_free('start: "{\\"a\\":" /[0-9]/ "}"'),
    ):
        grammar = tool_calls([NOW], required=False, parallel=True, answer=answer)
        assert allows(grammar, '{"a":5}')
        assert allows(grammar, call("now"))
        assert not allows(grammar, "text")
