"""Visits all schemas within a JSON schema, and leaves its data alone. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

DEFINITIONS = ("$defs", "definitions")
Change = Callable[[dict[str, Any], str], Any]
_ONE = frozenset({
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_BY_NAME = frozenset({
    "$defs", "definitions", "dependentSchemas", "patternProperties", "properties",
})  # fmt: skip


def changed(schema: Any, path: str, change: Change) -> Any:
    """``schema`` with each schema in it replaced by ``change`` of it and its path, the inner ones
    first. ``change`` may change what it is given. Raises RecursionError."""
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _inner(key, each, joined(path, key), change) for key, each in schema.items()}
    return change(found, path)


def joined(path: str, key: str) -> str:
    """The path of ``key`` in the object at ``path``."""
    return f"{path}.{key}" if path else key


def _inner(key: str, value: Any, path: str, change: Change) -> Any:
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: changed(each, joined(path, name), change) for name, each in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [changed(each, f"{path}[{i}]", change) for i, each in enumerate(value)]
    return changed(value, path, change) if key in _ONE else value
