"""The part that all parsers of tool calls share: they hold text until it is known what it is. Pure.

A parser reads in steps. Each takes some of the text held, and returns its events; None when more
text is needed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from coordinator.text.detokenizer import may_begin
from coordinator.text.tool_events import Content, Event


class CallParser(ABC):
    """Parses the text of one output, given in pieces of any length, into text and calls."""

    def __init__(self) -> None:
        self._held = ""
        self._num_calls = 0

    @property
    @abstractmethod
    def last_is_whole(self) -> bool:
        """True if there are calls, and the arguments of the last one have ended."""

    def push(self, text: str) -> Sequence[Event]:
        """Feed text; returns the events that are known now."""
        self._held += text
        events: list[Event] = []
        while (found := self._step()) is not None:
            events += found
        return events

    @abstractmethod
    def flush(self) -> Sequence[Event]:
        """End the output; returns the remaining events. A call that is cut off keeps the arguments
        that it has."""

    @abstractmethod
    def _step(self) -> list[Event] | None:
        """One step through the text held; None when more is needed."""


class TaggedCallParser(CallParser):
    """A parser of calls that begin with the tag ``_open``. The white space around calls belongs to
    no text."""

    _open: str

    def __init__(self) -> None:
        super().__init__()
        self._after_call = False

    @abstractmethod
    def _begin_call(self) -> None:
        """Read a call next: the tag was taken."""

    def _text(self) -> list[Event] | None:
        """A step through the text before a call."""
        if self._after_call:
            self._held = self._held.lstrip()
            self._after_call = not self._held
        text, tag, rest = self._held.partition(self._open)
        if tag:
            self._held = rest
            self._begin_call()
            return [Content(text)] if (text := text.rstrip()) else []
        sure = self._held[: len(self._held) - may_begin(self._held, self._open)].rstrip()
        if not sure:
            return None
        self._held = self._held[len(sure) :]
        return [Content(sure)]

    def _last_text(self, text: str) -> list[Event]:
        """The text at the end of the output, unless it is white space behind a call."""
        return [Content(text)] if text and not (self._num_calls and text.isspace()) else []
