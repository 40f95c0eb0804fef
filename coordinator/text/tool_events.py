"""The events that a parser of tool calls makes of the text of one output. Pure."""

from dataclasses import dataclass


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
