"""Random JSON schemas, by a seed: satisfiable, of the keywords that docs/api.md calls enforced.

Texts and arrays are short and objects closed: a model without practice goes on where it may.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from coordinator.text.string_formats import FORMATS
from coordinator.text.tool_values import types_of

Schema = dict[str, Any]
MAX_DEPTH = 2
_NAMES = ("name", "count", "unit", "a b", "größe", "x-1", "items", "type", "$id", "of")
_PATTERNS = (
    "^[a-z]+$", "^[A-Z]{2}-[0-9]{1,4}$", "[0-9]", "^x|y$", "^(yes|no|maybe)$", r"^\d{2}:\d{2}$",
    r"^[^\s]{1,8}$", "a/b", r"^\"[a-c]\"$", r"\.",
)  # fmt: skip
_CONSTANTS = ("", "a", 'a"b\\', "ü€", 0, -3, 1.5, True, None, [], [1, "a"], {"k": 1})


def random_schema(seed: int) -> Schema:
    """Of any kind of value."""
    return _with_definition(Random(seed), _schema)


def random_parameters(seed: int) -> Schema:
    """Of an object, as the parameters of a tool are. None of these is a text or something else:
    what such a text may be is not enforced."""
    schema = _with_definition(Random(seed), _object)
    properties = schema["properties"]
    for name, each in properties.items():
        types = types_of(each, schema)
        if "string" in types and not types <= {"string", "null"}:
            properties[name] = {"type": "boolean"}
    return schema


def _with_definition(random: Random, make: Callable[[Random, int], Schema]) -> Schema:
    """A quarter of the schemas refers to a definition, half of these to one that has itself."""
    schema = make(random, MAX_DEPTH)
    if '"$ref"' in json.dumps(schema):
        item = _object(random, 1)
        if random.random() < 0.5 and "maxProperties" not in item:
            again = {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 1}
            item["properties"]["then"] = again
        schema["$defs"] = {"item": item}
    return schema


def _schema(random: Random, depth: int) -> Schema:
    simple = [_text, _text, _integer, _number, _constants, _boolean]
    nested = [_object, _object, _array, _tuple, _any_of, _all_of, _one_of, _reference]
    return random.choice(simple + nested if depth > 0 else simple)(random, depth)


def _text(random: Random, depth: int) -> Schema:
    schema: Schema = {"type": random.choice(["string", "string", "string", ["string", "null"]])}
    match random.randrange(4):
        case 0:
            schema |= {"pattern": random.choice(_PATTERNS), "maxLength": 12}
        case 1:
            schema |= {"format": random.choice(sorted(FORMATS)), "maxLength": 48}
        case 2:
            schema |= {"minLength": 2, "maxLength": random.randrange(3, 20)}
        case 3:
            schema["maxLength"] = random.randrange(1, 20)
    return schema


def _integer(random: Random, depth: int) -> Schema:
    schema: Schema = {"type": "integer"}
    low = random.randrange(-1000, 1000)
    if random.random() < 0.6:
        schema[random.choice(["minimum", "exclusiveMinimum"])] = low
    if random.random() < 0.6:
        schema[random.choice(["maximum", "exclusiveMaximum"])] = low + random.randrange(50, 500)
    if random.random() < 0.3:
        schema["multipleOf"] = random.choice([2, 3, 10])
    return schema


def _number(random: Random, depth: int) -> Schema:
    schema: Schema = {"type": "number"}
    if random.random() < 0.6:
        low = round(random.uniform(-100, 100), random.randrange(3))
        schema |= {"minimum": low, "maximum": low + random.randrange(2, 100)}
    return schema


def _boolean(random: Random, depth: int) -> Schema:
    return {"type": random.choice(["boolean", "null", ["boolean", "integer"]])}


def _constants(random: Random, depth: int) -> Schema:
    if random.random() < 0.3:
        return {"const": random.choice(_CONSTANTS)}
    return {"enum": random.sample(_CONSTANTS, random.randrange(1, 6))}


def _object(random: Random, depth: int) -> Schema:
    names = random.sample(_NAMES, random.randrange(1, 4))
    properties = {name: _schema(random, depth - 1) for name in names}
    required = [name for name in names if random.random() < 0.7]
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    if random.random() < 0.3:
        schema["patternProperties"] = {"^[j-l]{1,3}$": _integer(random, 0)}
        if required == names:  # else the compiler refuses it
            schema["maxProperties"] = len(names) + 1
    return {**schema, "additionalProperties": False}


def _array(random: Random, depth: int) -> Schema:
    schema: Schema = {"type": "array", "items": _schema(random, depth - 1)}
    if random.random() < 0.5:
        schema["minItems"] = random.randrange(3)
    return schema | {"maxItems": schema.get("minItems", 0) + random.randrange(1, 3)}


def _tuple(random: Random, depth: int) -> Schema:
    items = [_schema(random, depth - 1) for _ in range(random.randrange(1, 4))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _any_of(random: Random, depth: int) -> Schema:
    return {"anyOf": [_schema(random, depth - 1) for _ in range(random.randrange(2, 4))]}


def _one_of(random: Random, depth: int) -> Schema:
    return {"oneOf": [_text(random, 0) | {"type": "string"}, _integer(random, 0), {"type": "null"}]}


def _all_of(random: Random, depth: int) -> Schema:
    low = random.randrange(100)
    return {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + 20}]}


def _reference(random: Random, depth: int) -> Schema:
    return {"$ref": "#/$defs/item"}
