"""Definitions of functions and JSON schemas as different clients write them.

Names, descriptions and the layout of the schema vary, down to invented names whose meaning only
the description gives: the model is to read a definition, not to remember it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Definition = dict[str, Any]

SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "tor", "dak")
INVENTED = 0.2


@dataclass(frozen=True)
class Field:
    """A parameter of a function, or a property of an object."""

    name: str
    schema: dict[str, Any]
    description: str


def invented(rng: Random) -> str:
    """A name without meaning: "fitor_ku"."""
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))
    return f"{word}_{rng.choice(SYLLABLES)}" if rng.random() < 0.3 else word


def named(rng: Random, names: Sequence[str], taken: Sequence[str] = ()) -> str:
    """One of `names`, now and then an invented one, none that is taken."""
    while True:
        name = invented(rng) if rng.random() < INVENTED else rng.choice(names)
        if name not in taken:
            return name


class Style:
    """How one client writes its schemas; a conversation has one style."""

    def __init__(self, rng: Random) -> None:
        self.described = rng.random() < 0.6
        self.titled = rng.random() < 0.2
        self.type_last = rng.random() < 0.25
        self.closed = rng.random() < 0.3
        self.strict = rng.random() < 0.1
        self.versioned = rng.random() < 0.08

    def object(self, fields: Sequence[Field], *, describe: bool = False) -> dict[str, Any]:
        """The schema of an object with `fields`, all required. `describe`: with descriptions
        even where this client leaves them out."""
        properties = {field.name: self._property(field, describe) for field in fields}
        kind = {"type": "object"}
        rest: dict[str, Any] = {"properties": properties}
        rest["required"] = [field.name for field in fields]
        schema = {**rest, **kind} if self.type_last else {**kind, **rest}
        if self.closed:
            schema["additionalProperties"] = False
        if self.versioned:
            schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        return schema

    def function(
        self, name: str, description: str, fields: Sequence[Field], *, describe: bool = False
    ) -> Definition:
        """A tool of the Chat Completions API."""
        function: dict[str, Any] = {"name": name, "description": description}
        function["parameters"] = self.object(fields, describe=describe)
        if self.strict:
            function["strict"] = True
        return {"type": "function", "function": function}

    def _property(self, field: Field, describe: bool) -> dict[str, Any]:
        schema = dict(field.schema)
        if self.described or describe:
            text = {"description": field.description}
            schema = {**text, **schema} if self.type_last else {**schema, **text}
        if self.titled:
            schema["title"] = field.name.replace("_", " ").title()
        return schema
