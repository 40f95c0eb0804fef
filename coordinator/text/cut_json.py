"""Completes a JSON object whose end is missing, as in the arguments of a call that was cut off.
Pure."""

import json
import re
from typing import Any

_CLOSERS = {"{": "}", "[": "]"}
_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$")
_CUT_ITEM = re.compile(
    r'\s*+(?:"(?:[^"\\]|\\.)*+\\?"?\s*+:?\s*+)?'
    r"(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|-?[0-9]*+\.?[0-9]*+(?:[eE][+-]?)?)?",
    re.DOTALL,
)
"""The beginning of a name, a number or a word, which is left out. Nothing is tried twice: the time
grows as the text does, whatever it says."""


def completed_object(text: str) -> dict[str, Any] | None:
    """The object that ``text`` is or begins; an empty one for an empty text. A string that was cut
    keeps what it has, and a name without a value gets null. None if no object begins with
    ``text``."""
    if not text.strip():
        return {}
    opened, in_string, escaped = "", False, False
    before = ("", "")  # the text before the last item, and the brackets that it has open
    for i, char in enumerate(text):
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in _CLOSERS:
            opened += char
            before = (text[: i + 1], opened)
        elif char in "]}":
            opened = opened[:-1]
        elif char == ",":
            before = (text[:i], opened)
    begun = _CUT_ESCAPE.sub(r"\1", text) + '"' if in_string else text
    tries = [(begun, opened), (begun + "null", opened)]
    if _CUT_ITEM.fullmatch(text[len(before[0]) :].removeprefix(",")):
        tries.append(before)
    for tried, left in tries:
        closed = tried + "".join(_CLOSERS[char] for char in reversed(left))
        try:
            found = json.loads(closed)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else None
    return None
