"""JSON schemas as llguidance's compiler takes them. Pure."""

from collections.abc import Mapping
from typing import Any

from coordinator.text.string_formats import FORMATS

_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data and no schema."""


def compilable(schema: Any) -> Any:
    """``schema`` without keywords that have no effect but are refused by the compiler: formats that
    are not in FORMATS (annotations, in JSON Schema's terms), and ``uniqueItems: false``. Raises
    RecursionError if it is nested too deeply."""
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
