"""JSON schemas as llguidance's compiler takes them. Pure."""

from collections.abc import Mapping
from typing import Any

from coordinator.text.schema_walk import DEFINITIONS, changed
from coordinator.text.string_formats import FORMATS

_ROOT = "root_of_all"


def compilable(schema: Any) -> Any:
    """``schema`` without keywords that have no effect but are refused by the compiler: formats that
    are not in FORMATS (annotations, in JSON Schema's terms), and ``uniqueItems: false``. Raises
    RecursionError if it is nested too deeply."""
    return changed(schema, "", _without_what_says_nothing)


def _without_what_says_nothing(schema: dict[str, Any], _: str) -> Any:
    return {key: value for key, value in schema.items() if not _says_nothing(key, value)}


def _says_nothing(key: str, value: Any) -> bool:
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    return key == "uniqueItems" and value is False


class Definitions:
    """What parts of the schema ``root`` may refer to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self._shared: dict[str, Any] = {key: root[key] for key in DEFINITIONS if key in root}
        self._refers_elsewhere = False
        changed(root, "", self._note)
        if self._refers_elsewhere:
            self._shared = {"$defs": {_ROOT: changed(root, "", _within_root)}}

    def standalone(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A part of ``root`` with all that it may refer to."""
        if self._refers_elsewhere:
            return {**changed(schema, "", _within_root), **self._shared}
        return {**self._shared, **schema}

    def _note(self, schema: dict[str, Any], _: str) -> Any:
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            kept = tuple(f"#/{key}/" for key in DEFINITIONS)
            self._refers_elsewhere |= not reference.startswith(kept)
        return schema


def _within_root(schema: dict[str, Any], _: str) -> Any:
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        schema["$ref"] = f"#/$defs/{_ROOT}{reference[1:]}"
    return schema
