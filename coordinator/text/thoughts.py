"""Thoughts between ``<think>`` and ``</think>``: who opens them, and their tokens. Pure."""

from dataclasses import dataclass
from enum import Enum

OPEN, CLOSE = "<think>", "</think>"


class Opener(Enum):
    """Who opens the thought of an answer: the prompt, as in Qwen3.5, or the model, as in Qwen3."""

    PROMPT = "prompt"
    MODEL = "model"
    NOBODY = "nobody"


@dataclass(frozen=True)
class ThoughtIds:
    """The tokens around the thought of one answer. ``start``: the one with which the model may
    begin it; None if the prompt has begun it, so that the output begins inside it."""

    end: int
    start: int | None = None


class ThoughtMeter:
    """Tells which tokens of one output belong to its thought; none if ``around`` is None."""

    def __init__(self, around: ThoughtIds | None) -> None:
        self._around = around
        self._begun = around is not None and around.start is None

    def has(self, token_id: int) -> bool:
        """True if the output's next token is part of the thought, whose last is ``end``."""
        if self._around is None:
            return False
        begun, self._begun = self._begun, True
        if (not begun and token_id != self._around.start) or token_id == self._around.end:
            self._around = None
        return begun or self._around is not None
