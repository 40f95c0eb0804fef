"""The value of a tool's parameter: text as the model wrote it, and JSON by the parameter's schema.
Pure."""

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
_ALL = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_MAX_LITERAL_LEN = 20_000
_MAX_REFS = 16
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<rest>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERALS = {"true": True, "false": False, "null": None, "none": None}


def types_of(schema: Any) -> frozenset[str]:
    """The JSON types that ``schema`` allows, as far as it names them itself; else all."""
    if not isinstance(schema, Mapping):
        return _ALL
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(each for each in named if isinstance(each, str))
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            return frozenset().union(*map(types_of, choices)) if choices else _ALL
    if "enum" in schema and isinstance(schema["enum"], list):
        return frozenset(_type_name(each) for each in schema["enum"])
    return frozenset({_type_name(schema["const"])}) if "const" in schema else _ALL


def resolved(schema: Any, root: Schema) -> Any:
    """``schema``, or what its ``$ref`` names in ``root``; itself where that names nothing."""
    for _ in range(_MAX_REFS):
        if not isinstance(schema, Mapping) or not isinstance(ref := schema.get("$ref"), str):
            return schema
        found: Any = root
        for part in ref.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is None:
            return schema
        schema = found
    return schema


def is_string_only(schema: Any) -> bool:
    """Whether a value can be nothing but a string."""
    return types_of(schema) == {"string"}


def as_json(text: str, schema: Any) -> str:
    """``text`` as JSON of a type that the schema allows; as a string where it is none of them.
    Half of a surrogate pair, which JSON's escapes can have and UTF-8 cannot, becomes U+FFFD."""
    types = types_of(schema)
    if "string" in types and types != _ALL and not _is_other(text, types):
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
    """What models write by habit: True, None, and dicts with single quotes."""
    if text.lower() in _LITERALS:
        return _LITERALS[text.lower()]
    if text[:1] not in ("[", "{") or len(text) > _MAX_LITERAL_LEN or text.count(text[0]) > 50:
        return _NO_VALUE  # Python's parser is no match for deep nesting
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _NO_VALUE


def _is_other(text: str, types: frozenset[str]) -> bool:
    """Whether ``text`` is JSON of one of ``types`` but a string."""
    try:
        value = json.loads(text.strip())
    except (ValueError, RecursionError):
        return False
    return not isinstance(value, str) and _fits(value, types)


def _fits(value: Any, types: frozenset[str]) -> bool:
    name = _type_name(value)
    if name in types or (name == "integer" and "number" in types):
        try:
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError):
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
