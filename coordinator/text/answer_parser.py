"""Divides the text of one answer into thought, content and tool calls. Pure.

The output begins inside the thought if the prompt ends with ``<think>``; otherwise the model may
begin with the tag. ``</think>`` ends the thought. The white space around the thought and the tags
belongs to neither.
"""

from dataclasses import dataclass, field

from coordinator.text.call_parser import CallParser
from coordinator.text.detokenizer import may_begin
from coordinator.text.thoughts import CLOSE, OPEN
from coordinator.text.tool_events import Content, Event


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
    """Divides the text of one output, given in pieces of any length, into thought and answer.
    ``opened``: the output begins inside the thought; otherwise it has one only if it begins with
    the tag."""

    def __init__(self, *, opened: bool = True) -> None:
        self._opened = opened
        self._thinking = True
        self._at_start = True
        self._held = ""

    def push(self, text: str) -> Divided:
        """Feed text; returns what is now known to be thought or answer."""
        if not self._opened:
            self._held += text
            begun = self._held.lstrip()
            if OPEN.startswith(begun) and begun != OPEN:
                return Divided()
            self._opened = True
            self._thinking = self._at_start = begun.startswith(OPEN)
            text = begun.removeprefix(OPEN) if self._thinking else self._held
            self._held = ""
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
        """End the output; the text held back is thought, unless no thought has begun."""
        if not self._opened:
            return Divided(answer=self._held)
        held, self._held = self._held.rstrip(), ""
        return Divided(self._without_lead(held)) if self._thinking else Divided()

    def _without_lead(self, text: str) -> str:
        """``text`` without white space at the beginning of the thought or the answer."""
        if self._at_start:
            text = text.lstrip()
            self._at_start = not text
        return text


class AnswerParser:
    """Parses the text of one answer, given in pieces of any length. ``thought``: divides it from a
    thought, if it may begin with one. ``tools``: finds calls, if it may have some."""

    def __init__(
        self, thought: ThoughtDivider | None = None, tools: CallParser | None = None
    ) -> None:
        self._thought = thought
        self._tools = tools

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
                rest = self._thought.flush()
                thought, text = thought + rest.thought, text + rest.answer
        pieces: list[Piece] = [Thought(thought)] if thought else []
        if self._tools is not None:
            pieces += self._tools.push(text)
            pieces += self._tools.flush() if last else []
        elif text:
            pieces.append(Content(text))
        return Parts(pieces)
