"""Settings and result of a correctness run: the suite, the share of right answers, and whether it
passes the gate."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from bench.harness.options import Settings


@dataclass(frozen=True)
class CorrectnessSettings(Settings):
    """``data`` None: the hub's test set, or the bundled problems. ``gated``: the kind of match
    that the gate is applied to."""

    kind = "correctness"
    suite: Annotated[
        Literal["gsm8k", "bundled"],
        Option(help="gsm8k: through lm-eval; bundled: the tiny model's own problems."),
    ] = "gsm8k"
    seed: Annotated[int | None, Option(help="Of the draw; fresh if not given.")] = None
    data: Annotated[
        Path | None, Option(help="Problems (JSON lines); GSM8K from the hub if not given.")
    ] = None
    num_problems: Annotated[int, Option(help="Drawn from gsm8k; 0: all.")] = 200
    concurrency: Annotated[int, Option(help="Requests at once.")] = 8
    max_tokens: Annotated[int, Option(help="Tokens an answer may have.")] = 1024
    tries: Annotated[int, Option(help="Calls of a failing request (gsm8k).")] = 3
    request_limit_s: float = 300.0
    limit_s: float = 7200.0
    gate: Annotated[
        float | None, Option(help="Share that must be right; 0.875 of gsm8k, 0.9 of bundled.")
    ] = None
    gated: Annotated[
        Literal["flexible", "strict"] | None,
        Option(help="The gate's match; flexible of gsm8k, strict of bundled."),
    ] = None

    def __post_init__(self) -> None:
        is_gsm8k = self.suite == "gsm8k"
        for name, default in (
            ("seed", secrets.randbelow(2**32)),
            ("gate", 0.875 if is_gsm8k else 0.9),
            ("gated", "flexible" if is_gsm8k else "strict"),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        object.__setattr__(self, "request_limit_s", math.ceil(self.request_limit_s))
        self.require_at_least(0, "num_problems")
        self.require_above_0("concurrency", "max_tokens", "tries", "request_limit_s", "limit_s")
        if not 0.0 <= (self.gate or 0.0) <= 1.0:
            raise ValueError(f"gate: {self.gate} is not between 0 and 1")

    def json(self) -> dict[str, Any]:
        return vars(self) | {"data": self.data and self.data.name}


@dataclass(frozen=True)
class Outcome:
    """Shares are of all ``num_problems``. ``wrong``: problems not solved by the gated match.
    ``details``: more for the result file."""

    suite: str
    num_problems: int
    scores: dict[str, float]
    settings: CorrectnessSettings
    wrong: Sequence[dict[str, Any]] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if the gate is met. A run without problems never passes."""
        assert self.settings.gate is not None
        return self.num_problems > 0 and self.scores[self._gated] >= self.settings.gate

    @property
    def _gated(self) -> str:
        return str(self.settings.gated)

    def problems(self) -> list[str]:
        """The gate, if it is missed."""
        if self.passed:
            return []
        score, count, gate = self.scores[self._gated], self.num_problems, self.settings.gate
        return [f"{self._gated} match: {score:.1%} of {count} is below {gate:.1%}"]

    def headline(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "problems": self.num_problems,
            **self.scores,
            "gate": self.settings.gate,
            "gated": self._gated,
            "passed": self.passed,
        }

    def json(self) -> dict[str, Any]:
        return {**self.headline(), **self.details, "wrong": list(self.wrong)}
