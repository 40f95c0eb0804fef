"""Reads one JSON value from text that comes in pieces, and mends its strings. Pure.

Models write line breaks and halves of surrogate pairs into strings, and escapes that JSON lacks.
They are escaped, or become U+FFFD, so that every string of the result can be read. What is outside
of strings stays as it is."""

import json
import re

_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_TOKEN = re.compile(
    rf'{_PAIR}|\\u[0-9a-fA-F]{{4}}|\\["\\/bfnrt]|[^"\\{{}}\[\],<\x00-\x1f]+|.', re.DOTALL
)
_CUT_ESCAPE = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3})?\Z"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z"
)
"""The beginning of an escape or of a pair of them, at the end of a text."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_REPLACEMENT = r"\ufffd"


class JsonValue:
    """Reads one value. ``ended``: it is complete. ``broken``: it has a ``<`` outside of strings,
    where JSON has none and a tag begins."""

    def __init__(self) -> None:
        self.ended = False
        self.broken = False
        self._depth = 0
        self._in_string = False

    def take(self, text: str) -> tuple[str, str]:
        """Feed text that begins where the last rest began; returns the further text of the value,
        and the rest: what follows the value, or an escape that is not complete."""
        taken, at = [], 0
        while at < len(text) and not (self.ended or self.broken):
            if text[at] == "\\" and _CUT_ESCAPE.match(text, at):
                break
            token = _TOKEN.match(text, at)
            assert token is not None, "any character is a token"
            if not self._takes(token[0]):
                break
            taken.append(_mended(token[0]) if self._in_string else token[0])
            at = token.end()
        return "".join(taken), text[at:]

    def _takes(self, token: str) -> bool:
        """Advance by a token; False if it follows the value."""
        match token:
            case '"':
                self._in_string = not self._in_string
                self.ended = not self._in_string and self._depth == 0
            case _ if self._in_string:
                pass
            case "<":
                self.broken = True
                return False
            case "," | "}" | "]" if self._depth == 0:
                self.ended = True
                return False
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
                self.ended = self._depth == 0
        return True


def _mended(token: str) -> str:
    """A token of a string, as JSON writes it."""
    if len(token) == 1 and (token < " " or token == "\\"):
        return json.dumps(token)[1:-1]
    return _REPLACEMENT if _SURROGATE.fullmatch(token) else token
