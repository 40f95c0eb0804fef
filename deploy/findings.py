"""The result of one check of ``baton doctor``."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """A finding. ``advice``: what to do, empty if the level is ok. "fail": Baton cannot serve."""

    level: Level
    topic: str
    text: str
    advice: str = ""

    def __post_init__(self) -> None:
        assert (self.level == "ok") == (not self.advice), "a warning or a failure needs advice"

    def line(self) -> str:
        """The finding as a line of text.

        >>> Finding("warn", "ports", "8000 is taken", "choose another").line()
        'warn  ports          8000 is taken -> choose another'
        """
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.level:4s}  {self.topic:13s}  {self.text}{advice}"


def last_line(text: str) -> str:
    """The last line that a program printed, to say why it failed."""
    return (text.strip().splitlines() or ["no output"])[-1]
