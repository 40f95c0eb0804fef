"""Writes the grammars of tool calls in the format of Qwen3.5, for llguidance. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coordinator.text.grammars import WHITE_SPACE, BadGrammar, check_len, quoted, schema_text
from coordinator.text.json_schemas import Definitions
from coordinator.text.qwen_parser import CLOSE, END_FUNCTION, FUNCTION, OPEN, PARAMETER
from coordinator.text.string_values import TEXT, ignored_keywords, terminal
from coordinator.text.tool_values import resolved, types_of

_END_VALUE = "\n</parameter>\n"
_OF_OBJECTS = (
    "allOf", "anyOf", "const", "enum", "maxProperties", "minProperties", "oneOf",
)  # fmt: skip
"""What the schema of all parameters may have, and no rule of a call says."""
_RULE_OF_VALUE = re.compile(r"value_(\d+)_(\d+)\b", re.IGNORECASE)


class Place(NamedTuple):
    """The part of the tools that a line of a grammar is about: the numbers of the tool and of its
    parameter; None if the line is about all parameters."""

    tool: int
    parameter: int | None = None


def tool_calls(
    tools: Sequence[Mapping[str, Any]], *, required: bool, parallel: bool, answer: str = ""
) -> str:
    """Grammar of calls of ``tools`` (each with ``name`` and perhaps ``parameters``), as the chat
    template writes them.

    ``required``: nothing but calls, one at least; otherwise text may come first, or instead of
    calls what the grammar ``answer`` allows. ``parallel``: more than one call. Parameters come in
    the schema's order; a required one is never left out."""
    if not tools:
        raise BadGrammar("there is no tool to call")
    rules = [f'call: {OPEN} "\\n" function "\\n" {CLOSE}']
    rules.append("function: " + " | ".join(f"function_{i}" for i in range(len(tools))))
    for i, tool in enumerate(tools):
        rules += _function(i, tool)
    calls = 'call ("\\n" call)*' if parallel else "call"
    start = f"start: text ({calls})?\ntext: /(?s:.*)/"
    if required or answer:
        start = f"start: {calls}" if required else f"start: {calls} | @answer"
    return with_answer([start, *rules, TEXT], "" if required else answer)


def with_answer(rules: Sequence[str], answer: str) -> str:
    """The grammar that ``rules`` are, which may name the grammar ``answer`` as ``@answer``. Raises
    BadGrammar if it is too long."""
    grammar = "\n".join(rules)
    check_len(grammar, "the tools' parameters")
    found = [{"name": "calls", "lark_grammar": grammar}]
    if answer:
        is_json = answer.startswith("{")
        named = json.loads(answer)["grammars"][0] if is_json else {"lark_grammar": answer}
        found.append({**named, "name": "answer"})
    return json.dumps({"grammars": found})


def place_of(grammar: str, line: int) -> Place | None:
    """The parameter that a line of the grammar (from 1) is about; None if it is about none."""
    lines = json.loads(grammar)["grammars"][0]["lark_grammar"].split("\n")
    rule = _RULE_OF_VALUE.match(lines[line - 1]) if 0 < line <= len(lines) else None
    return Place(int(rule[1]), int(rule[2])) if rule else None


def parameters_of(root: Any) -> Mapping[str, Any]:
    """The schemas of a tool's parameters by name, given the schema of all. Raises BadGrammar."""
    schema = resolved(root or {}, root or {})
    if not isinstance(schema, Mapping):
        raise BadGrammar("parameters is not the schema of an object")
    properties = schema.get("properties") or {}
    if not isinstance(properties, Mapping):
        raise BadGrammar("parameters.properties is not an object")
    return properties


def required_of(root: Any) -> Sequence[str]:
    """The names of a tool's required parameters. Raises BadGrammar for names of no parameters."""
    properties = parameters_of(root)
    required = resolved(root, root).get("required") or []
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise BadGrammar("parameters.required is not a list of names")
    if unknown := set(required) - set(properties):
        raise BadGrammar(f"parameters.required: {sorted(unknown)} are not properties")
    return required


def unwritten(root: Any) -> list[str]:
    """Paths of the keywords in the schema of a tool's parameters that ``tool_calls`` leaves out.
    Raises BadGrammar."""
    properties = parameters_of(root)
    schema = resolved(root or {}, root or {})
    always = {"minProperties": len(required_of(root)), "maxProperties": len(properties)}
    found = [
        f"parameters.{key}"
        for key in _OF_OBJECTS
        if key in schema and not _follows(key, schema[key], always)
    ]
    for name, value in properties.items():
        path = f"parameters.properties.{name}"
        found += [f"{path}.{key}" for key in ignored_keywords(value, root)]
    return found


def _follows(key: str, value: Any, always: Mapping[str, int]) -> bool:
    """True for a limit of the number of parameters that all calls keep to. ``always``: how many
    there are at least, and at most."""
    if key not in always or not isinstance(value, int):
        return False
    return value <= always[key] if key == "minProperties" else value >= always[key]


def _function(i: int, tool: Mapping[str, Any]) -> list[str]:
    try:
        return _rules(i, tool["name"], tool.get("parameters") or {})
    except BadGrammar as error:
        raise BadGrammar(f"tool {tool['name']!r}: {error}") from None


def _rules(i: int, tool_name: str, root: Any) -> list[str]:
    properties, required = parameters_of(root), required_of(root)
    definitions = Definitions(root)
    parts, rules = [quoted(f"{FUNCTION}{tool_name}>\n")], []
    for j, (name, value) in enumerate(properties.items()):
        rule = f"parameter_{i}_{j}"
        parts.append(rule if name in required else f"{rule}?")
        begin = quoted(f"{PARAMETER}{name}>\n")
        rules += [
            f"{rule}: {begin} value_{i}_{j}",
            _value(f"value_{i}_{j}", name, value, definitions),
        ]
    return [f"function_{i}: {' '.join(parts)} {quoted(END_FUNCTION)}", *rules]


def _value(rule: str, name: str, given: Any, definitions: Definitions) -> str:
    """Rules of a parameter's value and its end. Strings are written raw, everything else as
    JSON."""
    root = definitions.root
    schema = resolved(given, root)
    if isinstance(schema, Mapping) and "string" in types_of(schema, root):
        try:
            texts = terminal(schema, root)
        except ValueError as error:
            raise BadGrammar(f"parameters.properties.{name}: {error}") from None
        if texts is None:
            return f"{rule}[suffix={quoted(_END_VALUE)}]: TEXT"
        named = rule.upper()
        return f"{rule}: {named}\n{named}: ({texts}) {quoted(_END_VALUE)}"
    if isinstance(schema, Mapping):
        alone = definitions.standalone(schema)
        schema = {**alone, "x-guidance": {"whitespace_pattern": WHITE_SPACE}}
    return f"{rule}: %json {schema_text(schema)} {quoted(_END_VALUE)}"
