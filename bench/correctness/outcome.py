"""What a correctness run found, and whether that passes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

GSM8K_GATE = 0.875
BUNDLED_GATE = 0.90


@dataclass(frozen=True)
class Outcome:
    """Shares are of all ``num_problems``. ``gated`` names the score that the gate is on.

    ``wrong`` are the problems not solved by that score; ``details`` what else the report shows.
    """

    suite: str
    num_problems: int
    scores: dict[str, float]
    gated: str
    gate: float
    wrong: Sequence[dict[str, Any]] = ()
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.0 <= self.gate <= 1.0:
            raise ValueError(f"gate: {self.gate} is not between 0 and 1")
        assert self.gated in self.scores, "the gate is on one of the scores"

    @property
    def passed(self) -> bool:
        """No run without problems passes."""
        return self.num_problems > 0 and self.scores[self.gated] >= self.gate

    def problems(self) -> list[str]:
        """What makes the run fail: the gate."""
        if self.passed:
            return []
        score = self.scores[self.gated]
        return [f"{self.gated} match: {score:.1%} of {self.num_problems} is below {self.gate:.1%}"]

    def headline(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "problems": self.num_problems,
            **self.scores,
            "gate": self.gate,
            "gated": self.gated,
            "passed": self.passed,
        }

    def json(self) -> dict[str, Any]:
        return {**self.headline(), **self.details, "wrong": list(self.wrong)}
