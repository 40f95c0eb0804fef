"""Divides an output that begins with a thought into the thought and the answer. Pure.

The prompt ends with ``<think>``, so the output begins inside the thought; ``</think>`` ends it. The
white space around the thought and the tag belongs to neither.
"""

from dataclasses import dataclass

from coordinator.text.stops import may_begin

CLOSE = "</think>"


@dataclass(frozen=True)
class Divided:
    """Text that came; either may be empty."""

    thought: str = ""
    answer: str = ""


class ThoughtDivider:
    """Takes the text of one output in pieces of any length."""

    def __init__(self) -> None:
        self._thinking = True
        self._at_start = True
        self._held = ""

    @property
    def thinking(self) -> bool:
        """Whether the thought has not ended yet."""
        return self._thinking

    def push(self, text: str) -> Divided:
        """What is known to be thought or answer by now."""
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
        """The output has ended: what was held back is thought."""
        held, self._held = self._held.rstrip(), ""
        return Divided(self._without_lead(held)) if self._thinking else Divided()

    def _without_lead(self, text: str) -> str:
        """Without white space at the beginning of the thought or the answer."""
        if self._at_start:
            text = text.lstrip()
            self._at_start = not text
        return text
