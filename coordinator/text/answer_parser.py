"""Divides the text of one answer into thought, content and tool calls. Pure.

The prompt of an answer that thinks ends with ``<think>``, so the output begins inside the thought;
``</think>`` ends it. The white space around the thought and the tag belongs to neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.text.detokenizer import may_begin
from coordinator.text.tool_events import Content, Event
from coordinator.text.tool_parser import ToolParser
from coordinator.text.tool_values import Schema

CLOSE = "</think>"


@dataclass(frozen=True)
class Thought:
    """Text of the thought, with which an answer begins."""

    text: str


Piece = Thought | Event


@dataclass
class Parts:
    """The parts of an answer that a piece of text completed, in order."""

    pieces: list[Piece] = field(default_factory=list)

    @property
    def thought(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Thought))

    @property
    def content(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Content))

    @property
    def calls(self) -> list[Event]:
        """The events of tool calls."""
        return [piece for piece in self.pieces if not isinstance(piece, Thought | Content)]

    def __bool__(self) -> bool:
        return bool(self.pieces)


@dataclass(frozen=True)
class Divided:
    """Text divided into ``thought`` and ``answer``; either may be empty."""

    thought: str = ""
    answer: str = ""


class ThoughtDivider:
    """Divides the text of one output, given in pieces of any length, into thought and answer."""

    def __init__(self) -> None:
        self._thinking = True
        self._at_start = True
        self._held = ""

    def push(self, text: str) -> Divided:
        """Feed text; returns what is now known to be thought or answer."""
        if not self._thinking:
            return Divided(answer=self._without_lead(text))
        self._held += text
        thought, tag, answer = self._held.partition(CLOSE)
        if tag:
            thought = self._without_lead(thought.rstrip())
            self._thinking, self._at_start, self._held = False, True, ""
            return Divided(thought, self._without_lead(answer))
        sure = self._held[: len(self._held) - may_begin(self._held, CLOSE)].rstrip()
        self._held = self._held[len(sure) :]
        return Divided(self._without_lead(sure))

    def flush(self) -> Divided:
        """End the output; the text held back is thought."""
        held, self._held = self._held.rstrip(), ""
        return Divided(self._without_lead(held)) if self._thinking else Divided()

    def _without_lead(self, text: str) -> str:
        """``text`` without white space at the beginning of the thought or the answer."""
        if self._at_start:
            text = text.lstrip()
            self._at_start = not text
        return text


class AnswerParser:
    """Parses the text of one answer, given in pieces of any length.

    ``thinks``: the answer begins with a thought. ``tools``: the parameters of each tool that may be
    called; None if the text has no calls to look for.
    """

    def __init__(self, *, thinks: bool, tools: Mapping[str, Schema] | None) -> None:
        self._thought = ThoughtDivider() if thinks else None
        self._tools = ToolParser(tools) if tools is not None else None

    @property
    def calls_tools(self) -> bool:
        """True if the text has calls of tools, and all are whole: none was cut off."""
        return self._tools is not None and self._tools.last_is_whole

    def push(self, text: str, *, last: bool = False) -> Parts:
        """Feed text; returns the parts that are known now, all of them with the ``last`` piece."""
        thought = ""
        if self._thought is not None:
            divided = self._thought.push(text)
            thought, text = divided.thought, divided.answer
            if last:
                thought += self._thought.flush().thought
        pieces: list[Piece] = [Thought(thought)] if thought else []
        if self._tools is not None:
            pieces += self._tools.push(text)
            pieces += self._tools.flush() if last else []
        elif text:
            pieces.append(Content(text))
        return Parts(pieces)
