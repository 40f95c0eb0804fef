"""Divides the text of one answer into thought, content and tool calls. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.text.thought import ThoughtDivider
from coordinator.text.tool_parser import Content, Event, ToolParser
from coordinator.text.tool_values import Schema


@dataclass
class Parts:
    """What came of each kind, in order; ``calls`` are the events of tool calls."""

    thought: str = ""
    content: str = ""
    calls: list[Event] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.thought or self.content or self.calls)


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
        parts = Parts()
        if self._thought is not None:
            divided = self._thought.push(text)
            parts.thought, text = divided.thought, divided.answer
            if last:
                parts.thought += self._thought.flush().thought
        if self._tools is None:
            parts.content = text
            return parts
        events = self._tools.push(text)
        if last:
            events += self._tools.flush()
        for event in events:
            if isinstance(event, Content):
                parts.content += event.text
            else:
                parts.calls.append(event)
        return parts
