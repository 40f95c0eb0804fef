"""Finds the tool calls of an output in the format of Llama 3. Pure.

    <|python_tag|>{"name": NAME, "parameters": {...}}

The tag may be missing: it is a special token, which most texts lack. An output is calls if it
begins with one. Other calls may follow, divided by white space or ``;``. An object is a call if it
names one of the tools, and has parameters but no keys that calls lack; otherwise it is text, and
so is all that follows it."""

from collections.abc import Mapping
from enum import Enum, auto

from coordinator.text.call_parser import CallParser
from coordinator.text.json_call import JsonCall
from coordinator.text.tool_events import Arguments, CallBegins, Content, Event
from coordinator.text.tool_values import Schema

TAG = "<|python_tag|>"


class _At(Enum):
    BEFORE = auto()  # where a call may begin
    CALL = auto()
    TEXT = auto()


class LlamaParser(CallParser):
    """Parses the text of one output, given in pieces of any length. ``tools``: the functions that
    may be called."""

    def __init__(self, tools: Mapping[str, Schema]) -> None:
        super().__init__()
        self._tools = frozenset(tools)
        self._at = _At.BEFORE
        self._lead = ""  # the text between the last call, or the beginning, and this object
        self._call = JsonCall()
        self._last_is_whole = False

    @property
    def last_is_whole(self) -> bool:
        return self._last_is_whole

    def flush(self) -> list[Event]:
        held, self._held = self._held, ""
        if self._at is _At.CALL:
            held = "" if self._call.begun else self._lead + self._call.raw
        return [Content(held)] if held and not (self._num_calls and not held.strip("; \n")) else []

    def _step(self) -> list[Event] | None:
        match self._at:
            case _At.BEFORE:
                return self._before()
            case _At.CALL:
                return self._object()
            case _At.TEXT:
                return self._text(self._held)

    def _before(self) -> list[Event] | None:
        text = self._held.lstrip()
        if self._num_calls:
            text = text.removeprefix(";").lstrip()
        if TAG.startswith(text) and text != TAG:
            return None
        text = text.removeprefix(TAG).lstrip()
        if not text:
            return None
        if not text.startswith("{"):
            return self._text(text if self._num_calls else self._held)
        self._lead = self._held[: len(self._held) - len(text)] if not self._num_calls else ""
        self._at, self._held, self._call = _At.CALL, text, JsonCall()
        return []

    def _object(self) -> list[Event] | None:
        if not self._held:
            return None
        call, had_begun = self._call, self._call.begun
        piece, self._held = call.push(self._held), ""
        ended = call.ended or call.broken
        if not had_begun:
            is_call = call.is_known and call.has_arguments and call.name in self._tools
            if not is_call and (ended or call.begun or not call.is_known):
                return self._text(self._lead + call.raw)
            if not call.begun:
                return []
            self._num_calls += 1
        self._last_is_whole = call.arguments_ended
        if ended:
            self._at, self._held = _At.BEFORE, call.rest
        index = self._num_calls - 1
        begins: list[Event] = [] if had_begun else [CallBegins(index, call.name)]
        return [*begins, Arguments(index, piece)] if piece else begins

    def _text(self, text: str) -> list[Event] | None:
        self._at, self._held = _At.TEXT, ""
        return [Content(text)] if text else None
