"""Turns the schema of a tool's string parameter into a terminal of llguidance's Lark. Pure.

For the parameters of tools: the template writes a string as it is, without JSON's quotes, so the
compiler's own JSON strings do not apply. ``null`` is written as the word.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher

from coordinator.text.qwen_parser import END_PARAMETER
from coordinator.text.string_formats import FORMATS
from coordinator.text.tool_values import Schema, resolved, types_of

TEXT = r"TEXT: /(?s:.*)/ & ~/(?s:.*)<\/parameter>(?s:.*)/"
"""The terminal of any string: the tag that ends a value is no part of it, as the parser has it."""
_MAX_VISITS = 200
_TEXTS = frozenset({"string", "null"})
_CHOICES = frozenset({"enum", "const"})
_ABOUT_TEXTS = ("const", "enum", "format", "maxLength", "minLength", "pattern")


def terminal(schema: Any, root: Schema) -> str | None:
    """The terminal of the texts that ``schema`` allows, in terms of TEXT; None for any text.

    A text whose length is limited has no ``<``: the masks of other expressions take 10 ms each. Of
    a schema that allows other types than strings and null, only ``enum`` and ``const`` count.
    ``oneOf`` counts as ``anyOf``, and a format that is not in FORMATS as an annotation. Raises
    ValueError for a keyword's wrong value."""
    return _Reader(root).read(schema, types_of(schema, root))


def ignored_keywords(schema: Any, root: Schema) -> list[str]:
    """The keywords about texts that ``terminal`` takes no notice of, since ``schema`` allows
    strings and other types."""
    whole, types = resolved(schema, root), types_of(schema, root)
    if "string" not in types or types <= _TEXTS or not isinstance(whole, Mapping):
        return []
    if _CHOICES & set(whole):
        return []
    found, to_read = list[str](), [whole]
    for _ in range(_MAX_VISITS):
        if not to_read:
            break
        each = resolved(to_read.pop(), root)
        if not isinstance(each, Mapping):
            continue
        found += [key for key in _ABOUT_TEXTS if key in each and key not in found]
        to_read += [
            branch for key in ("anyOf", "oneOf", "allOf") for branch in _branches(each, key)
        ]
    return found


class _Reader:
    """Reads a schema with the definitions of ``root``. The number of its visits is limited: a few
    references can name each other an exponential number of times."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._visits = 0

    def read(self, given: Any, types: frozenset[str]) -> str | None:
        """The terminal of a schema that allows no more than ``types``."""
        self._visits += 1
        if self._visits > _MAX_VISITS:
            raise ValueError(f"has more than {_MAX_VISITS} subschemas")
        schema = resolved(given, self._root)
        if not isinstance(schema, Mapping):
            return None
        options = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(options, list):
            return _any_of([_literal(each) for each in options])
        types &= types_of(schema, self._root)
        if not types <= _TEXTS:
            return None
        if types == {"null"}:
            return _literal(None)
        parts = [*_keywords(schema), *self._combined(schema, types)]
        if not parts:
            return None
        both = " & ".join(parts)
        return f"(({both}) | {_literal(None)})" if "null" in types else both

    def _combined(self, schema: Schema, types: frozenset[str]) -> Iterator[str]:
        for key in ("anyOf", "oneOf"):
            if branches := _branches(schema, key):
                found = [self.read(branch, types) for branch in branches]
                if None not in found:
                    yield _any_of([each for each in found if each is not None])
        for branch in _branches(schema, "allOf"):
            if (part := self.read(branch, types)) is not None:
                yield f"({part})"


def _branches(schema: Schema, key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _keywords(schema: Schema) -> Iterator[str]:
    if (pattern := schema.get("pattern")) is not None:
        if not isinstance(pattern, str):
            raise ValueError("pattern is not a string")
        yield f"({_any_of([_regex(each) for each in _searches(pattern)])} & TEXT)"
    least, most = schema.get("minLength"), schema.get("maxLength")
    if least is not None or most is not None:
        if not all(each is None or (type(each) is int and each >= 0) for each in (least, most)):
            raise ValueError("minLength and maxLength are integers of at least 0")
        yield _regex(f"[^<]{{{least or 0},{'' if most is None else most}}}")
    if found := FORMATS.get(str(schema.get("format"))):
        yield _regex(found)


def _searches(pattern: str) -> Sequence[str]:
    """Regular expressions of whole texts, one for each alternative of ``pattern``: JSON Schema's
    patterns may match anywhere in a text, unless they begin with ``^`` or end with ``$``."""
    found = []
    for each in _alternatives(pattern):
        begin = "" if each.startswith("^") else "(?s:.*)"
        ends = each.endswith("$") and _num_backslashes(each[:-1]) % 2 == 0
        inner = each.removeprefix("^")
        found.append(f"{begin}(?:{inner[:-1] if ends else inner}){'' if ends else '(?s:.*)'}")
    return found


def _alternatives(pattern: str) -> Sequence[str]:
    """``pattern`` split at each ``|`` outside of groups and classes."""
    found, begin, depth, in_class, i = [], 0, 0, False, 0
    while i < len(pattern):
        match pattern[i]:
            case "\\":
                i += 1
            case "[":
                in_class = True
            case "]":
                in_class = False
            case "(" | ")" if not in_class:
                depth += 1 if pattern[i] == "(" else -1
            case "|" if not in_class and depth == 0:
                found.append(pattern[begin:i])
                begin = i + 1
        i += 1
    return [*found, pattern[begin:]]


def _num_backslashes(text: str) -> int:
    """Number of backslashes at the end of ``text``."""
    return len(text) - len(text.rstrip("\\"))


def _regex(pattern: str) -> str:
    """``pattern`` as Lark writes it, with its slashes and line breaks escaped."""
    grammar = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"]
    return str(grammar).removeprefix("start: ")


def _literal(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    if END_PARAMETER in text:
        raise ValueError(f"a value with {END_PARAMETER} cannot be written")
    return json.dumps(text, ensure_ascii=False)


def _any_of(parts: Sequence[str]) -> str:
    return f"({' | '.join(parts)})"
