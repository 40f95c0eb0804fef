"""Throughput results side by side: level by level, with ratios to the first, and the scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.figures.score import WEIGHTS, ScoreFailed, score

# What differs between any two runs, and what is shown level by level.
_MAY_DIFFER = ("seed", "levels")
_LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")


@dataclass(frozen=True)
class Side:
    """One result; ``correct`` is None where no correctness result was given."""

    name: str
    document: dict[str, Any]
    correct: bool | None = None

    @property
    def tok_s(self) -> dict[int, float]:
        """Verified total tok/s by level, of levels in which every request was sent; one that had
        failures counts what did complete."""
        return {
            level["concurrency"]: level["total_tok_s"]
            for level in self.document["results"].get("levels", [])
            if level.get("total_tok_s") is not None and not level["not_sent"]
        }

    @property
    def problems(self) -> list[str]:
        """Why this result is not a good one."""
        stopped = self.document["stopped"]
        return [*([f"stopped: {stopped}"] if stopped else []), *self.document["problems"]]

    def level(self, concurrency: int) -> dict[str, Any]:
        levels = self.document["results"].get("levels", [])
        return next((found for found in levels if found["concurrency"] == concurrency), {})

    def score(self) -> float | None:
        """None where a level is missing."""
        try:
            return score(self.tok_s, correct=self.correct is not False)
        except ScoreFailed:
            return None


def scored(side: Side) -> dict[str, Any]:
    """The score and what it is made of."""
    rows = [
        {
            "level": level,
            "weight": weight,
            "total_tok_s": side.tok_s.get(level),
            "points": None if level not in side.tok_s else weight * side.tok_s[level],
        }
        for level, weight in WEIGHTS.items()
    ]
    return {"name": side.name, "correct": side.correct, "score": side.score(), "levels": rows}


def differences(sides: Sequence[Side]) -> list[str]:
    """Settings that are not the same, and so make the comparison one of different things."""
    found = []
    settings = [side.document["settings"] for side in sides]
    for name in dict.fromkeys(name for each in settings for name in each):
        values = [each.get(name) for each in settings]
        if name in _MAY_DIFFER:
            continue
        if any(value != values[0] for value in values):
            found.append(f"{name}: {', '.join(map(str, values))}")
    return found


def compared(sides: Sequence[Side]) -> dict[str, Any]:
    """Every level that any side has: its figures and their ratios to the first side's."""
    levels = sorted({level for side in sides for level in side.tok_s})
    return {
        "sides": [
            {
                "name": side.name,
                "score": side.score(),
                "correct": side.correct,
                "problems": side.problems,
                "server": side.document["server"],
            }
            for side in sides
        ],
        "score_ratios": _ratios([side.score() for side in sides]),
        "differences": differences(sides),
        "levels": [
            {
                "level": level,
                "total_tok_s": (values := [side.tok_s.get(level) for side in sides]),
                "ratios": _ratios(values),
                **{
                    f"{key.removesuffix('_ms')}_{share}_ms": [
                        (side.level(level).get(key) or {}).get(share) for side in sides
                    ]
                    for key in _LATENCIES
                    for share in ("p50", "p99")
                },
            }
            for level in levels
        ],
    }


def _ratios(values: Sequence[float | None]) -> list[float | None]:
    first = values[0]
    return [value / first if value is not None and first else None for value in values]
