"""JSON schemas as llguidance's compiler takes them. Pure."""

from collections.abc import Mapping
from typing import Any

from coordinator.text.string_formats import FORMATS

_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data and no schema."""


def compilable(schema: Any) -> Any:
    """``schema`` without what says nothing, and is refused by the compiler all the same: formats
    that are not in FORMATS, which JSON Schema calls annotations, and ``uniqueItems: false``. Raises
    RecursionError where it is too deep."""
    match schema:
        case Mapping():
            return {
                key: value if key in _VALUES else compilable(value)
                for key, value in schema.items()
                if not _says_nothing(key, value)
            }
        case list():
            return [compilable(each) for each in schema]
    return schema


def _says_nothing(key: str, value: Any) -> bool:
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    return key == "uniqueItems" and value is False
