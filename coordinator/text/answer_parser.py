"""Divides the text of one answer into thought, content and tool calls. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.text.thought import ThoughtDivider
from coordinator.text.tool_parser import Content, Event, ToolParser
from coordinator.text.tool_values import Schema


@dataclass(frozen=True)
class Thought:
    """Text of the thought, with which an answer begins."""

    text: str


Piece = Thought | Event


@dataclass
class Parts:
    """What came, in order."""

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


class AnswerParser:
    """Takes the text of one answer in pieces of any length.

    ``thinks``: it begins with a thought. ``tools``: the parameters of each tool that may be called,
    None where calls are not looked for.
    """

    def __init__(self, *, thinks: bool, tools: Mapping[str, Schema] | None) -> None:
        self._thought = ThoughtDivider() if thinks else None
        self._tools = ToolParser(tools) if tools is not None else None

    @property
    def num_calls(self) -> int:
        return 0 if self._tools is None else self._tools.num_calls

    def push(self, text: str, *, last: bool = False) -> Parts:
        """What is known by now; all of it with the ``last`` piece."""
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
