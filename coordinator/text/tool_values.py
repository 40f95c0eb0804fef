"""Converts the value of a tool's parameter from the model's text to JSON, by its schema.
Pure."""

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
Types = frozenset[str]
ONLY_STRING: Types = frozenset({"string"})
ALL_TYPES: Types = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_MAX_LITERAL_LEN = 20_000
_MAX_REFS = 16
_MAX_DEPTH = 64
_NUMBERS = frozenset({"integer", "number"})
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<rest>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERALS = {"true": True, "false": False, "null": None, "none": None}


def types_of(schema: Any, root: Schema) -> Types:
    """The JSON types that ``schema``, or the definition in ``root`` that it refers to, allows; all
    types if it names none."""
    return _Reader(root).types_of(schema)


class _Reader:
    """Reads each schema once, however often others refer to it. A schema that is still being read
    allows nothing, so it adds nothing to a choice that it is itself part of. A schema that is
    nested too deeply allows all types."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[int, Types] = {}
        self._depth = 0

    def types_of(self, given: Any) -> Types:
        schema = resolved(given, self._root)
        if not isinstance(schema, Mapping) or self._depth == _MAX_DEPTH:
            return ALL_TYPES
        if id(schema) not in self._known:
            self._known[id(schema)] = frozenset()
            self._depth += 1
            self._known[id(schema)] = self._read(schema)
            self._depth -= 1
        return self._known[id(schema)]

    def _read(self, schema: Schema) -> Types:
        types = self._named(schema)
        branches = schema.get("allOf")
        for branch in branches if isinstance(branches, list) else ():
            types = _in_both(types, self.types_of(branch)) or types
        return types

    def _named(self, schema: Schema) -> Types:
        named = schema.get("type")
        if isinstance(named, str):
            return frozenset({named})
        if isinstance(named, list):
            return frozenset(each for each in named if isinstance(each, str))
        for key in ("anyOf", "oneOf"):
            if isinstance(choices := schema.get(key), list):
                return frozenset().union(*map(self.types_of, choices)) or ALL_TYPES
        if "enum" in schema and isinstance(schema["enum"], list):
            return frozenset(_type_name(each) for each in schema["enum"])
        return frozenset({_type_name(schema["const"])}) if "const" in schema else ALL_TYPES


def _in_both(a: Types, b: Types) -> Types:
    """The types that both sets allow; every integer is a number."""
    both = a & b
    return both | {"integer"} if a & _NUMBERS and b & _NUMBERS and "number" not in both else both


def resolved(schema: Any, root: Schema) -> Any:
    """``schema``, or what its ``$ref`` names in ``root``; itself where that names nothing."""
    for _ in range(_MAX_REFS):
        if not isinstance(schema, Mapping) or not isinstance(ref := schema.get("$ref"), str):
            return schema
        found: Any = root
        for part in ref.removeprefix("#/").split("/") if ref != "#" else ():
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            return schema
        schema = found
    return schema


def as_json(text: str, types: Types) -> str:
    """``text`` as JSON of one of ``types``, or else as a string. Half of a surrogate pair, which
    JSON's escapes can have and UTF-8 cannot, becomes U+FFFD."""
    if "string" in types and types != ALL_TYPES and not _is_other(text, types):
        return json.dumps(text, ensure_ascii=False)
    stripped = text.strip()
    number = _NUMBER.fullmatch(stripped)
    if number and ("number" in types or ("integer" in types and not number["rest"])):
        return stripped  # as it is: 1e999 and 5,000 digits are JSON, but no numbers of Python's
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        value = _python_literal(stripped)
    if isinstance(value, float) and "integer" in types and "number" not in types:
        value = int(value) if math.isfinite(value) and value == int(value) else value
    if value is _NO_VALUE or not _fits(value, types):
        return json.dumps(text, ensure_ascii=False)
    return _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", json.dumps(value, ensure_ascii=False))


class _NoValue:
    pass


_NO_VALUE = _NoValue()


def _python_literal(text: str) -> Any:
    """The value of Python syntax that models write by habit: True, None, dicts in single quotes."""
    if text.lower() in _LITERALS:
        return _LITERALS[text.lower()]
    if text[:1] not in ("[", "{") or len(text) > _MAX_LITERAL_LEN or text.count(text[0]) > 50:
        return _NO_VALUE  # Python's parser is no match for deep nesting
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _NO_VALUE


def _is_other(text: str, types: Types) -> bool:
    """True if ``text`` is JSON of one of ``types`` other than a string."""
    try:
        value = json.loads(text.strip())
    except (ValueError, RecursionError):
        return False
    return not isinstance(value, str) and _fits(value, types)


def _fits(value: Any, types: Types) -> bool:
    name = _type_name(value)
    if name in types or (name == "integer" and "number" in types):
        try:
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, RecursionError):
            return False
        return True
    return False


def _type_name(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case list() | tuple():
            return "array"
        case dict():
            return "object"
        case _:
            return "unknown"
