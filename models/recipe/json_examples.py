"""Random JSON schemas with values that fit, so that the model can close what it opens."""

import json
from random import Random
from typing import Any

from models.recipe import words
from models.recipe.chat_form import Message
from models.recipe.definitions import invented

Schema = dict[str, Any]

KEYS = (
    "name",
    "count",
    "price",
    "items",
    "id",
    "city",
    "date",
    "color",
    "size",
    "tags",
    "ok",
    "kind",
)
PROMPTS = (
    "Give an example that fits this JSON schema: {}",
    "Write JSON for this schema: {}",
    "{}\nAn example, please.",
)
SCALARS = ("string", "string", "integer", "number", "boolean", "enum", "null")


def schema_of(rng: Random, depth: int) -> Schema:
    """A schema with objects and arrays nested at most `depth` deep."""
    kind = rng.choice((*SCALARS, "object", "array", "array") if depth else SCALARS)
    if kind == "object":
        keys = {rng.choice(KEYS) if rng.random() < 0.7 else invented(rng) for _ in range(4)}
        names = sorted(keys)[: rng.randint(1, 4)]
        properties = {name: schema_of(rng, depth - 1) for name in names}
        return {"type": "object", "properties": properties, "required": names}
    if kind == "array":
        return {"type": "array", "items": schema_of(rng, depth - 1)}
    if kind == "enum":
        return {"enum": rng.sample(words.OBJECTS, 3)}
    return {"type": kind}


def value_for(rng: Random, schema: Schema) -> Any:
    """A short value that fits ``schema``."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema["type"]:
        case "object":
            return {name: value_for(rng, each) for name, each in schema["properties"].items()}
        case "array":
            return [value_for(rng, schema["items"]) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))]
        case "string":
            texts = (*words.OBJECTS, *words.HE, *words.SHE, "")
            return " ".join(rng.choice(texts) for _ in range(rng.choice((1, 1, 2)))).strip()
        case "integer":
            return rng.choice((rng.randint(0, 12), rng.randint(-99, 999)))
        case "number":
            return rng.choice((rng.randint(0, 99), round(rng.uniform(-9, 99), 1)))
        case "boolean":
            return rng.random() < 0.5
    return None


def example(rng: Random) -> list[Message]:
    """A schema and an example of it."""
    schema = schema_of(rng, 2)
    while schema.get("type") != "object" and rng.random() < 0.8:
        schema = schema_of(rng, 2)
    question = rng.choice(PROMPTS).format(json.dumps(schema))
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": json.dumps(value_for(rng, schema))},
    ]
