"""Finds tool calls in an output, in the format of Qwen3.5's chat template. Pure.

    <tool_call>
    <function=NAME>
    <parameter=PARAMETER>
    VALUE
    </parameter>
    </function>
    </tool_call>

Arguments become JSON, with the types that the tool's schema names: a value that may only be a
string is passed on piece by piece, any other value when it is complete. An output that breaks the
format before the function's name is text; one that breaks it later loses what cannot be an
argument."""

import json
from collections.abc import Mapping
from enum import Enum, auto

from coordinator.text.call_parser import TaggedCallParser
from coordinator.text.detokenizer import may_begin
from coordinator.text.tool_events import Arguments, CallBegins, Content, Event
from coordinator.text.tool_values import ONLY_STRING, Schema, as_json, resolved, types_of

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"


class _At(Enum):
    TEXT = auto()
    CALL = auto()  # behind <tool_call>
    FUNCTION = auto()  # between parameters
    VALUE = auto()
    END = auto()  # behind </function>


class QwenParser(TaggedCallParser):
    """Parses the text of one output, given in pieces of any length. ``parameters``: the JSON schema
    of each function's parameters, by the function's name."""

    _open = OPEN

    def __init__(self, parameters: Mapping[str, Schema]) -> None:
        super().__init__()
        self._parameters = parameters
        self._at = _At.TEXT
        self._name = ""
        self._root: Schema = {}
        self._types = ONLY_STRING
        self._streams = False
        self._num_parameters = 0

    @property
    def last_is_whole(self) -> bool:
        return self._num_calls > 0 and self._at not in (_At.FUNCTION, _At.VALUE)

    def flush(self) -> list[Event]:
        held, self._held = self._held, ""
        match self._at:
            case _At.TEXT:
                return self._last_text(held)
            case _At.CALL:
                return [Content(OPEN + held)]
            case _At.VALUE if self._streams:
                return self._argument_text(held.removesuffix("\n"))
            case _:
                return []

    def _step(self) -> list[Event] | None:
        match self._at:
            case _At.TEXT:
                return self._text()
            case _At.CALL:
                return self._call()
            case _At.FUNCTION:
                return self._function()
            case _At.VALUE:
                return self._value()
            case _At.END:
                return self._end()

    def _begin_call(self) -> None:
        self._at = _At.CALL

    def _call(self) -> list[Event] | None:
        text = self._held.lstrip()
        if not text.startswith(FUNCTION):
            if FUNCTION.startswith(text):
                return None
            self._at = _At.TEXT  # what follows may have a call yet
            return [Content(OPEN)]
        name, end, rest = text.removeprefix(FUNCTION).partition(">")
        if not end:
            return None
        self._held, self._at, self._name = rest, _At.FUNCTION, name.strip()
        self._root = self._parameters.get(self._name, {})
        self._num_parameters = 0
        self._num_calls += 1
        return [CallBegins(self._num_calls - 1, self._name), *self._argument_text("{", raw=True)]

    def _function(self) -> list[Event] | None:
        text = self._held = self._held.lstrip()
        if text.startswith(END_FUNCTION):
            self._held, self._at = text.removeprefix(END_FUNCTION), _At.END
            return self._argument_text("}", raw=True)
        if text.startswith(PARAMETER):
            name, end, rest = text.removeprefix(PARAMETER).partition(">")
            return self._begin_value(name.strip(), rest) if end else None
        return self._skip_to(PARAMETER, END_FUNCTION)

    def _begin_value(self, name: str, rest: str) -> list[Event] | None:
        if not rest or rest == "\n":
            return None  # whether a line break follows is not known yet, or all that is
        self._held, self._at = rest.removeprefix("\n"), _At.VALUE
        schema = resolved(self._root, self._root)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        known = properties if isinstance(properties, Mapping) else {}
        self._types = types_of(known.get(name, {"type": "string"}), self._root)
        self._streams = self._types == ONLY_STRING
        comma = ", " if self._num_parameters else ""
        self._num_parameters += 1
        quote = '"' if self._streams else ""
        return self._argument_text(f"{comma}{json.dumps(name)}: {quote}", raw=True)

    def _value(self) -> list[Event] | None:
        value, tag, rest = self._held.partition(END_PARAMETER)
        if tag:
            self._held, self._at = rest, _At.FUNCTION
            value = value.removesuffix("\n")
            if self._streams:
                return [*self._argument_text(value), *self._argument_text('"', raw=True)]
            return self._argument_text(as_json(value, self._types), raw=True)
        if not self._streams:
            return None
        sure = self._held[
            : len(self._held) - may_begin(self._held, "\n" + END_PARAMETER, END_PARAMETER)
        ]
        if not sure:
            return None
        self._held = self._held[len(sure) :]
        return self._argument_text(sure)

    def _end(self) -> list[Event] | None:
        text = self._held = self._held.lstrip()
        if text.startswith(CLOSE):
            self._held, self._at, self._after_call = text.removeprefix(CLOSE), _At.TEXT, True
            return []
        if text.startswith(FUNCTION):
            self._at = _At.CALL
            return []
        return self._skip_to(CLOSE, FUNCTION)

    def _skip_to(self, *tags: str) -> list[Event] | None:
        """Drop the text before the next of ``tags``; None if more text may complete a tag."""
        if not self._held or any(tag.startswith(self._held) for tag in tags):
            return None
        at = min((i for tag in tags if (i := self._held.find(tag)) >= 0), default=-1)
        keep = may_begin(self._held, *tags)
        self._held = self._held[at if at >= 0 else len(self._held) - keep :]
        return [] if self._held else None

    def _argument_text(self, text: str, *, raw: bool = False) -> list[Event]:
        piece = text if raw else json.dumps(text, ensure_ascii=False)[1:-1]
        return [Arguments(self._num_calls - 1, piece)] if piece else []
