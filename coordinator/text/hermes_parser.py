"""Finds tool calls in an output, in the format of Hermes, which Qwen2.5 and Qwen3 have. Pure.

    <tool_call>
    {"name": NAME, "arguments": {...}}
    </tool_call>

Arguments are passed on piece by piece. A call that breaks the format before its arguments is text;
one that breaks it later keeps the arguments that it has."""

from collections.abc import Mapping
from enum import Enum, auto

from coordinator.text.call_parser import TaggedCallParser
from coordinator.text.detokenizer import may_begin
from coordinator.text.json_call import JsonCall
from coordinator.text.tool_events import Arguments, CallBegins, Content, Event
from coordinator.text.tool_values import Schema

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class _At(Enum):
    TEXT = auto()
    CALL = auto()  # behind <tool_call>
    END = auto()  # behind the object


class HermesParser(TaggedCallParser):
    """Parses the text of one output, given in pieces of any length."""

    _open = OPEN

    def __init__(self, _: Mapping[str, Schema]) -> None:
        super().__init__()
        self._at = _At.TEXT
        self._call = JsonCall()
        self._last_is_whole = False

    @property
    def last_is_whole(self) -> bool:
        return self._last_is_whole

    def flush(self) -> list[Event]:
        held, self._held = self._held, ""
        if self._at is _At.CALL and not self._call.begun:
            held = OPEN + self._call.raw
        elif self._at is not _At.TEXT:
            return []
        return self._last_text(held)

    def _step(self) -> list[Event] | None:
        match self._at:
            case _At.TEXT:
                return self._text()
            case _At.CALL:
                return self._object()
            case _At.END:
                return self._end()

    def _begin_call(self) -> None:
        self._at, self._call = _At.CALL, JsonCall()

    def _object(self) -> list[Event] | None:
        if not self._held:
            return None
        call, had_begun = self._call, self._call.begun
        piece, self._held = call.push(self._held), ""
        if call.ended or call.broken:
            self._held, self._at = call.rest, _At.END
        if not call.begun:
            if self._at is not _At.END:
                return []
            # What follows the opening tag may have a call yet.
            self._held, self._at = call.raw, _At.TEXT
            return [Content(OPEN)]
        self._num_calls += not had_begun
        self._last_is_whole = call.arguments_ended
        index = self._num_calls - 1
        begins: list[Event] = [] if had_begun else [CallBegins(index, call.name)]
        return [*begins, Arguments(index, piece)] if piece else begins

    def _end(self) -> list[Event] | None:
        """Drop the text before the next tag."""
        found = [at for tag in (CLOSE, OPEN) if (at := self._held.find(tag)) >= 0]
        if not found:
            self._held = self._held[len(self._held) - may_begin(self._held, CLOSE, OPEN) :]
            return None
        self._held = self._held[min(found) :].removeprefix(CLOSE)
        self._at, self._after_call = _At.TEXT, True
        return []
