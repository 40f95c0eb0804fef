"""The events that a parser of tool calls makes of the text of one output. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Content:
    """Text that belongs to no call."""

    text: str


@dataclass(frozen=True)
class CallBegins:
    """Call number ``index`` of the output, to the function ``name``."""

    index: int
    name: str


@dataclass(frozen=True)
class Arguments:
    """A further piece of the JSON object that call ``index`` has for arguments."""

    index: int
    text: str


Event = Content | CallBegins | Arguments


class CallParser(Protocol):
    """Parses the text of one output, given in pieces of any length, into text and calls."""

    @property
    def last_is_whole(self) -> bool:
        """True if there are calls, and the arguments of the last one have ended."""
        ...

    def push(self, text: str) -> Sequence[Event]:
        """Feed text; returns the events that are known now."""
        ...

    def flush(self) -> Sequence[Event]:
        """End the output; returns the remaining events. A call that is cut off keeps the arguments
        that it has."""
        ...
