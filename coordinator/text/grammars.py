"""Writes grammars for llguidance, which say what a request's output may be. Pure.

``problem`` says whether the compiler accepts a grammar. That takes milliseconds, and a few hundred
for the largest grammar that ``LIMITS`` let pass."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from coordinator.text.json_schemas import compilable
from coordinator.text.string_values import TEXT, terminal
from coordinator.text.tool_parser import CLOSE, END_FUNCTION, FUNCTION, OPEN, PARAMETER
from coordinator.text.tool_values import resolved, types_of
from transport.grammars import compiled

MAX_LEN = 256 * 1024
"""Characters of a schema, regular expression or grammar."""
MAX_STEP_S = 0.1
_WHITE_SPACE = r"[ ]?|\n[ ]{0,20}"
_END_VALUE = "\n</parameter>\n"


class BadGrammar(ValueError):
    """A schema or grammar that cannot be served; the message says where and why."""


def json_schema(schema: Mapping[str, Any] | bool) -> str:
    """Grammar of the JSON that a schema allows, with at most a blank or a line break between
    items."""
    if not isinstance(schema, Mapping | bool):
        raise BadGrammar("a JSON schema is an object or a boolean")
    if schema is False:
        raise BadGrammar("the JSON schema allows nothing")
    text = _schema_text({} if schema is True else schema)
    _check_len(text, "the JSON schema")
    try:
        return LLMatcher.grammar_from_json_schema(
            text, overrides={"whitespace_pattern": _WHITE_SPACE}
        )
    except ValueError as error:
        raise BadGrammar(f"the JSON schema: {error}") from error


def json_object() -> str:
    """Grammar of any JSON object."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> str:
    """Grammar of text that matches a whole regular expression (Rust's syntax, no look-around)."""
    _check_len(pattern, "the regular expression")
    return LLMatcher.grammar_from_regex(pattern)


def choice(texts: Sequence[str]) -> str:
    """Grammar of one of ``texts``."""
    if not texts:
        raise BadGrammar("the list of choices is empty")
    _check_len("".join(texts), "the choice")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(_quoted(text) for text in texts))


def context_free(grammar: str) -> str:
    """Grammar given in llguidance's Lark, or in GBNF, which is recognised by its ``::=``."""
    _check_len(grammar, "the grammar")
    if "::=" in grammar:
        try:
            grammar = gbnf_to_lark(grammar)
        except Exception as error:  # whatever its converter stumbles over
            raise BadGrammar(f"the grammar is not valid GBNF: {error}") from error
    return LLMatcher.grammar_from_lark(grammar)


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
    grammar = "\n".join([start, *rules, TEXT])
    _check_len(grammar, "the tools' parameters")
    found = [{"name": "calls", "lark_grammar": grammar}]
    if answer and not required:
        is_json = answer.startswith("{")
        named = json.loads(answer)["grammars"][0] if is_json else {"lark_grammar": answer}
        found.append({**named, "name": "answer"})
    return json.dumps({"grammars": found})


def problem(grammar: str, tokenizer: LLTokenizer) -> str:
    """Why the grammar cannot be served with this tokenizer; "" if it can. Computes the first mask,
    since what makes a grammar expensive often shows only there."""
    matcher = compiled(grammar, tokenizer)
    if matcher.is_error():
        return matcher.get_error()
    began = time.thread_time()
    matcher.compute_bitmask()
    if (spent := time.thread_time() - began) > MAX_STEP_S:
        return f"its first token alone takes {1e3 * spent:.0f} ms to find, more than 100"
    return matcher.get_error()


def _function(i: int, tool: Mapping[str, Any]) -> list[str]:
    root = tool.get("parameters") or {}
    schema = resolved(root, root)
    if not isinstance(schema, Mapping):
        raise BadGrammar(f"tool {tool['name']!r}: parameters is not the schema of an object")
    properties = schema.get("properties") or {}
    if not isinstance(properties, Mapping):
        raise BadGrammar(f"tool {tool['name']!r}: properties is not an object")
    required = schema.get("required") or []
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise BadGrammar(f"tool {tool['name']!r}: required is not a list of names")
    if unknown := set(required) - set(properties):
        raise BadGrammar(f"tool {tool['name']!r}: required {sorted(unknown)} are not properties")
    parts, rules = [_quoted(f"{FUNCTION}{tool['name']}>\n")], []
    for j, (name, value) in enumerate(properties.items()):
        rule = f"parameter_{i}_{j}"
        parts.append(rule if name in required else f"{rule}?")
        begin = _quoted(f"{PARAMETER}{name}>\n")
        rules += [f"{rule}: {begin} value_{i}_{j}", _value(f"value_{i}_{j}", name, value, root)]
    return [f"function_{i}: {' '.join(parts)} {_quoted(END_FUNCTION)}", *rules]


def _value(rule: str, name: str, given: Any, root: Mapping[str, Any]) -> str:
    """Rules of a parameter's value and its end. Strings are written raw, everything else as
    JSON."""
    schema = resolved(given, root)
    if isinstance(schema, Mapping) and "string" in types_of(schema, root):
        try:
            texts = terminal(schema, root)
        except ValueError as error:
            raise BadGrammar(f"parameter {name!r}: {error}") from None
        if texts is None:
            return f"{rule}[suffix={_quoted(_END_VALUE)}]: TEXT"
        named = rule.upper()
        return f"{rule}: {named}\n{named}: ({texts}) {_quoted(_END_VALUE)}"
    if isinstance(schema, Mapping):
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        schema = {**shared, **schema, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}}
    return f"{rule}: %json {_schema_text(schema)} {_quoted(_END_VALUE)}"


def _schema_text(schema: Any) -> str:
    try:
        return json.dumps(compilable(schema))
    except RecursionError:
        raise BadGrammar("the JSON schema is nested too deeply") from None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _check_len(text: str, what: str) -> None:
    if len(text) > MAX_LEN:
        raise BadGrammar(f"{what} has {len(text)} characters, more than {MAX_LEN}")
