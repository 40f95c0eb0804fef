"""Requests made to hurt: schemas, grammars and tools that a server must refuse, and quickly.

Each is a chat with one bad field: too large, too deep, endless, or ruinous to compile. Most
were found by trying what makes a compiler of grammars slow, hungry, or die.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

Json = dict[str, Any]


@dataclass(frozen=True)
class Bad:
    """One bad body. ``fields``: what it has besides messages. ``param``: how the name of the field
    that the answer blames must begin."""

    param: str
    fields: Callable[[], Json]

    def body(self, number: int = 0) -> bytes:
        """The body, different for every ``number``, so that no answer comes from a cache."""
        messages = [{"role": "user", "content": "Hi"}]
        text = msgspec.json.encode({"messages": messages, **self.fields()})
        return text.replace(b"NUMBER", b"n%d" % number)


def nested(depth: int, kind: str = "integer") -> Json:
    schema: Json = {"type": kind, "description": "NUMBER"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def chained(length: int, *, twice: bool) -> Json:
    """A schema whose definitions each need the next one, or need it twice: 2^length values."""

    def link(i: int) -> Json:
        names = ("a", "b") if twice else ("a",)
        refs = {name: {"$ref": f"#/$defs/l{i + 1}"} for name in names}
        return {"type": "object", "properties": refs, "required": list(names)}

    links = {f"l{i}": link(i) for i in range(length)}
    return {"$defs": {**links, f"l{length}": {"const": "NUMBER"}}, "$ref": "#/$defs/l0"}


def product(factors: int) -> Json:
    """A schema that is all of many choices, with as many cases as their product."""
    return {
        "title": "NUMBER",
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"p{i}_{j}": {}}} for j in range(4)]}
            for i in range(factors)
        ],
    }


def rules(length: int) -> str:
    """A grammar whose rules each need the next one."""
    links = [f'r{i}: "NUMBER{i}" r{i + 1} | r{i + 1}' for i in range(length)]
    return "\n".join(["start: r0", *links, f'r{length}: "z"'])


def doubled(length: int) -> str:
    """A grammar whose terminals are each the next one twice."""
    links = [f"R{i}: R{i + 1} R{i + 1}" for i in range(length)]
    return "\n".join(["start: R0", *links, f'R{length}: "NUMBER"'])


def everything_with(count: int) -> str:
    """A grammar of texts that contain many words in any order: a state for each subset."""
    return "start: A\nA: " + " & ".join(f"/(?s:.*)NUMBER{i}(?s:.*)/" for i in range(count))


def tools(count: int, properties: int = 1) -> list[Json]:
    parameters = {f"p{j}": {"type": "integer"} for j in range(properties)}
    return [
        {"type": "function", "function": {"name": f"f{i}", "description": "NUMBER",
         "parameters": {"type": "object", "properties": parameters}}}
        for i in range(count)
    ]  # fmt: skip


def _schema(schema: Callable[[], Any]) -> Bad:
    def fields() -> Json:
        named = {"name": "s", "schema": schema()}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    return Bad("response_format", fields)


def _field(name: str, value: Callable[[], Any], **others: Any) -> Bad:
    return Bad(name, lambda: {name: value(), **others})


def _form(kind: str, value: Callable[[], Any]) -> Bad:
    return Bad("structured_outputs", lambda: {"structured_outputs": {kind: value()}})


BAD: Mapping[str, Bad] = {
    "schema nested 200 deep": _schema(lambda: nested(200)),
    "schema nested 440 deep": _schema(lambda: nested(440)),
    "schema of 40,000 properties": _schema(
        lambda: {"type": "object", "properties": {f"NUMBER{i}": {} for i in range(40_000)}}
    ),
    "schema of 8,000 properties": _schema(
        lambda: {"type": "object", "properties": {f"NUMBER{i}": {} for i in range(8_000)}}
    ),
    "schema of 20,000 values": _schema(lambda: {"enum": [f"NUMBER{i}" for i in range(20_000)]}),
    "schema with 4^10 cases": _schema(lambda: product(10)),
    "multiples of 999,983": _schema(
        lambda: {"type": "integer", "multipleOf": 999_983, "title": "NUMBER"}
    ),
    "chain of 1,000 $refs": _schema(lambda: chained(1_000, twice=False)),
    "chain of 1,000 double $refs": _schema(lambda: chained(1_000, twice=True)),
    "$ref to itself": _schema(lambda: {"$ref": "#", "title": "NUMBER"}),
    "$refs in a circle": _schema(
        lambda: {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            "$ref": "#/$defs/a",
            "title": "NUMBER",
        }
    ),
    "$ref elsewhere": _schema(lambda: {"$ref": "https://example.com/NUMBER"}),
    "regex of 200,000 brackets": _form("regex", lambda: "NUMBER" + "(" * 100_000 + ")" * 100_000),
    "regex of 50,000 classes": _form("regex", lambda: "NUMBER" + "[a-z]" * 50_000),
    "regex of 1 MB": _field("guided_regex", lambda: "NUMBER" + "a" * 1_000_000),
    "grammar of 1 MB": _field("guided_grammar", lambda: 'start: "NUMBER" ' + '"a" ' * 250_000),
    "grammar of 50,000 brackets": _form(
        "grammar", lambda: "start: " + "(" * 50_000 + '"NUMBER"' + ")" * 50_000
    ),
    "GBNF of 20,000 brackets": _form(
        "grammar", lambda: "root ::= " + "(" * 20_000 + '"NUMBER"' + ")" * 20_000
    ),
    "grammar of 8,000 rules": _form("grammar", lambda: rules(8_000)),
    "terminal of 2^40 letters": _form("grammar", lambda: doubled(40)),
    "terminal with 60 words": _form("grammar", lambda: everything_with(60)),
    "10,000 tools": _field("tools", lambda: tools(10_000)),
    "1,025 tools": _field("tools", lambda: tools(1_025)),
    "1,000 strict tools of 9 integers": _field(
        "tools", lambda: tools(1_000, 9), tool_choice="required"
    ),
}
