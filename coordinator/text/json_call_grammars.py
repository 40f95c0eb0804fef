"""Writes the grammars of tool calls that are JSON objects, those of Hermes and Llama 3. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.text.grammars import WHITE_SPACE, BadGrammar, quoted, schema_text
from coordinator.text.hermes_parser import CLOSE, OPEN
from coordinator.text.tool_grammars import Place, required_of, with_answer

_COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf", "patternProperties"})
"""Keywords that may allow properties which ``properties`` does not list."""
_RULE_OF_ARGUMENTS = re.compile(r"arguments_(\d+)\b")


def hermes_calls(
    tools: Sequence[Mapping[str, Any]], *, required: bool, parallel: bool, answer: str = ""
) -> str:
    """Grammar of calls as the templates of Qwen2.5 and Qwen3 write them; the arguments are those of
    ``tool_grammars.tool_calls``."""
    calls = 'call ("\\n" call)*' if parallel else "call"
    start = f"start: text ({calls})?\ntext: /(?s:.*)/"
    if required or answer:
        start = f"start: {calls}" if required else f"start: {calls} | @answer"
    call = f'call: {OPEN} "\\n" function "\\n" {CLOSE}'
    return with_answer([start, call, *_functions(tools, "arguments")], "" if required else answer)


def llama_calls(
    tools: Sequence[Mapping[str, Any]], *, required: bool, parallel: bool, answer: str = ""
) -> str:
    """Grammar of one call as the template of Llama 3 writes it; the arguments are those of
    ``tool_grammars.tool_calls``. There is one call even if ``parallel``: the template refuses a
    conversation in which an answer has several."""
    del parallel
    start = "start: function | TEXT\n" + r'TEXT: /(?s:.*)/ & ~/\s*\{\s*"name"(?s:.*)/'
    if required or answer:
        start = "start: function" if required else "start: function | @answer"
    return with_answer([start, *_functions(tools, "parameters")], "" if required else answer)


def place_in_calls(grammar: str, line: int) -> Place | None:
    """The tool that a line of the grammar (from 1) is about; None if it is about none."""
    lines = json.loads(grammar)["grammars"][0]["lark_grammar"].split("\n")
    rule = _RULE_OF_ARGUMENTS.match(lines[line - 1]) if 0 < line <= len(lines) else None
    return Place(int(rule[1])) if rule else None


def _functions(tools: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Rules of an object that calls one of ``tools``, with its arguments under ``key``."""
    if not tools:
        raise BadGrammar("there is no tool to call")
    rules = ["function: " + " | ".join(f"function_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        name = tool["name"]
        try:
            schema = _closed(tool.get("parameters") or {})
            text = schema_text({**schema, "x-guidance": {"whitespace_pattern": WHITE_SPACE}})
        except BadGrammar as error:
            raise BadGrammar(f"tool {name!r}: {error}") from None
        begin = quoted(f'{{"name": {json.dumps(name)}, "{key}": ')
        rules += [f'function_{i}: {begin} arguments_{i} "}}"', f"arguments_{i}: %json {text}"]
    return rules


def _closed(root: Any) -> Mapping[str, Any]:
    """The schema of a tool's arguments, which allows no other than its properties unless it says
    so."""
    required_of(root)
    if not _COMBINING.isdisjoint(root):
        return dict(root)
    return {"additionalProperties": False, **root, "type": "object"}
