"""Reads one tool call that is a JSON object with the function's name and its arguments. Pure."""

import json
from enum import Enum, auto

from coordinator.text.json_value import JsonValue

_NAME = "name"
_ARGUMENTS = frozenset({"arguments", "parameters"})
"""Both keys are read in every dialect: models mix them up."""
_OTHERS = frozenset({"type", "id"})
_NO_ARGUMENTS = "{}"


class _At(Enum):
    OBJECT = auto()  # before its brace
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    ENDED = auto()
    BROKEN = auto()


class JsonCall:
    """Reads ``{"name": NAME, "arguments": {...}}``, with the keys in any order, from text in
    pieces. Arguments that are no object, but the JSON of one in a string, are decoded; other values
    count as none.

    ``begun``: the name is known, and arguments have begun or the object has ended.
    ``is_known``: no other keys than those of calls came."""

    def __init__(self) -> None:
        self.name = ""
        self.begun = False
        self._raw: list[str] = []
        self.is_known = True
        self.has_arguments = False
        self.arguments_ended = False
        self._at = _At.OBJECT
        self._held = ""
        self._value = JsonValue()
        self._text: list[str] = []  # of a key, a name, or arguments that cannot be passed on yet
        self._key: str | None = None
        self._waiting: list[str] = []

    @property
    def raw(self) -> str:
        """The text fed before the call had begun."""
        return "".join(self._raw)

    @property
    def ended(self) -> bool:
        """True if the object is complete."""
        return self._at is _At.ENDED

    @property
    def broken(self) -> bool:
        """True if the text is no such object."""
        return self._at is _At.BROKEN

    @property
    def rest(self) -> str:
        """The text that follows the call, once it has ended or is broken."""
        return self._held

    def push(self, text: str) -> str:
        """Feed text; returns the further text of the arguments, as far as the call has begun."""
        if not self.begun:
            self._raw.append(text)
        self._held += text
        while self._step():
            pass
        if not self.begun:
            self.begun = bool(self.name) and (self.has_arguments or self.ended)
        if not self.begun:
            return ""
        if self.ended and not self.has_arguments:
            self.arguments_ended = True
            self._waiting.append(_NO_ARGUMENTS)
        found, self._waiting = "".join(self._waiting), []
        return found

    def _step(self) -> bool:
        """One step through the text held; False when more is needed, or none will be taken."""
        if self._at in (_At.ENDED, _At.BROKEN):
            return False
        if self._at is _At.VALUE:
            return self._take_value()
        text = self._held.lstrip()
        if not text:
            return False
        match self._at, text[0]:
            case _At.OBJECT, "{":
                self._go(_At.KEY, text[1:])
            case _At.KEY, '"':
                self._key = None
                self._go(_At.VALUE, text)
            case _At.COLON, ":":
                self._go(_At.VALUE, text[1:])
            case _At.COMMA, ",":
                self._go(_At.KEY, text[1:])
            case ((_At.KEY | _At.COMMA), "}"):
                self._go(_At.ENDED, text[1:])
            case _:
                self._go(_At.BROKEN, text)
        return True

    def _go(self, at: _At, rest: str) -> None:
        self._at, self._held = at, rest
        if at is _At.VALUE:
            self._value, self._text = JsonValue(), []

    def _take_value(self) -> bool:
        """Read a key, or the value of one."""
        if not self._text:
            self._held = self._held.lstrip()
        if not self._held:
            return False
        taken, self._held = self._value.take(self._held)
        self._text.append(taken)
        if self._key in _ARGUMENTS:
            self._pass_on()
        if self._value.broken:
            self._at = _At.BROKEN
        elif self._value.ended:
            self._end_value()
        return self._value.broken or self._value.ended

    def _pass_on(self) -> None:
        """Pass on arguments that are an object piece by piece, others when they are complete."""
        if self.arguments_ended:  # a key that came twice
            return
        if self._text[0].startswith("{"):
            self._waiting += self._text
            self._text = [""]
            self.has_arguments = True
        elif self.has_arguments:
            self._waiting.append(self._text.pop())
        elif self._value.ended:
            self._waiting.append(_object_in("".join(self._text)))
            self.has_arguments = True
        self.arguments_ended = self.has_arguments and self._value.ended

    def _end_value(self) -> None:
        text = "".join(self._text)
        if self._key is None:
            self._key = _string(text)
            known = self._key == _NAME or self._key in _ARGUMENTS or self._key in _OTHERS
            self.is_known &= known
            self._at = _At.COLON
            return
        if self._key == _NAME and not self.name:
            self.name = _string(text)
        self._at = _At.COMMA if self._key != _NAME or self.name else _At.BROKEN


def _string(text: str) -> str:
    """The string that ``text`` is in JSON; "" if it is another value."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return value if isinstance(value, str) else ""


def _object_in(text: str) -> str:
    """The JSON of the object in a string that ``text`` is in JSON; ``{}`` if there is none."""
    inner = _string(text)
    try:
        return inner if isinstance(json.loads(inner), dict) else _NO_ARGUMENTS
    except (ValueError, RecursionError):
        return _NO_ARGUMENTS
