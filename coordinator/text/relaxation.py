"""Leaves out of a tool's schema what no grammar enforces, and says where it was. Pure.

The result allows all that the schema allows, and more.
"""

from collections.abc import Callable
from typing import Any

from coordinator.text.schema_walk import DEFINITIONS, changed, joined
from coordinator.text.tool_values import Schema, resolved

NOT_ENFORCED = frozenset({
    "$dynamicRef", "contains", "dependencies", "dependentRequired", "dependentSchemas", "else",
    "if", "maxContains", "minContains", "not", "propertyNames", "then", "unevaluatedItems",
    "unevaluatedProperties", "uniqueItems",
})  # fmt: skip
"""Keywords that the compiler of grammars lacks."""
_SIZES = ("minProperties", "maxProperties")
Compiles = Callable[[Schema], bool]


class Relaxation:
    """Relaxes the schema at ``path``. ``left_out``: the paths of the keywords that were left
    out."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.left_out: list[str] = []

    def without_keywords(self, schema: Any) -> Any:
        """``schema`` without the keywords that are never enforced."""

        def change(inner: dict[str, Any], path: str) -> Any:
            for key in sorted(NOT_ENFORCED & set(inner)):
                if not _allows_all(key, inner[key]):
                    self._leave_out(inner, path, key)
            return inner

        return changed(schema, self._path, change)

    def compilable(self, schema: Any, compiles: Compiles) -> Any:
        """``schema`` without keywords that are not enforced with the value they have: patterns with
        look-around, alternatives of ``oneOf`` that overlap, references to other documents, numbers
        of optional properties. ``compiles``: whether a schema can be compiled."""

        def change(inner: dict[str, Any], path: str) -> Any:
            self._check_reference(inner, path, schema)
            self._check_patterns(inner, path, compiles)
            self._check_sizes(inner, path, compiles)
            return inner

        found = changed(schema, self._path, change)
        loose = changed(found, "", _with_any_of)
        definitions = {key: loose[key] for key in DEFINITIONS if key in loose}

        def check_one_of(inner: dict[str, Any], path: str) -> Any:
            branches = inner.get("oneOf")
            if not isinstance(branches, list) or compiles({**definitions, "oneOf": branches}):
                return inner
            self._note(path, "oneOf")
            return _with_any_of(inner, path)

        return changed(found, self._path, check_one_of)

    def _check_reference(self, schema: dict[str, Any], path: str, root: Any) -> None:
        reference = schema.get("$ref")
        if isinstance(reference, str) and not _exists(reference, root):
            self._leave_out(schema, path, "$ref")

    def _check_patterns(self, schema: dict[str, Any], path: str, compiles: Compiles) -> None:
        pattern, names = schema.get("pattern"), schema.get("patternProperties")
        if isinstance(pattern, str) and not compiles({"type": "string", "pattern": pattern}):
            self._leave_out(schema, path, "pattern")
        if isinstance(names, dict) and not all(
            compiles({"type": "string", "pattern": name}) for name in names
        ):
            self._leave_out(schema, path, "patternProperties")
            schema.pop("additionalProperties", None)  # it is about the names that do not match

    def _check_sizes(self, schema: dict[str, Any], path: str, compiles: Compiles) -> None:
        if not (sizes := [key for key in _SIZES if key in schema]):
            return
        names = schema.get("properties")
        properties: dict[str, Any] = {name: {} for name in names} if isinstance(names, dict) else {}
        about = {key: schema[key] for key in (*sizes, "required") if key in schema}
        if not compiles({"type": "object", "properties": properties, **about}):
            for key in sizes:
                self._leave_out(schema, path, key)

    def _leave_out(self, schema: dict[str, Any], path: str, key: str) -> None:
        del schema[key]
        self._note(path, key)

    def _note(self, path: str, key: str) -> None:
        place = joined(path, key)
        within = (f"{place}.", f"{place}[")
        self.left_out = [each for each in self.left_out if not each.startswith(within)]
        self.left_out.append(place)


def _allows_all(key: str, value: Any) -> bool:
    """True if the keyword allows everything with this value."""
    if key == "uniqueItems":
        return value is False
    return key.startswith("unevaluated") and value is True


def _with_any_of(schema: dict[str, Any], path: str) -> Any:
    """``schema`` with ``anyOf`` in place of ``oneOf``."""
    if isinstance(branches := schema.pop("oneOf", None), list):
        others = schema.get("allOf")
        schema["allOf"] = [*(others if isinstance(others, list) else ()), {"anyOf": branches}]
        if others is None and "anyOf" not in schema:
            schema["anyOf"] = schema.pop("allOf")[0]["anyOf"]
    return schema


def _exists(reference: str, root: Any) -> bool:
    """True if ``root`` has a schema that ``reference`` names."""
    named = {"$ref": reference}
    return reference == "#" or (reference.startswith("#/") and resolved(named, root) is not named)
