"""What the levels of a scale run found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScaleReport:
    """``levels`` as ``run_level`` gives them."""

    levels: Sequence[dict[str, Any]]

    def problems(self) -> list[str]:
        return [f"{one['level']}: {what}" for one in self.levels for what in one["problems"]]

    def headline(self) -> dict[str, Any]:
        return {
            "levels": [one["level"] for one in self.levels],
            "most_open": max((one["most_open"]["client"] for one in self.levels), default=0),
            **{
                end: sum(one["ends"][end] for one in self.levels)
                for end in ("finished", "refused", "failed", "lost")
            },
            "problems": sum(one["num_problems"] for one in self.levels),
        }

    def json(self) -> dict[str, Any]:
        return {**self.headline(), "by_level": list(self.levels)}


def line(level: dict[str, Any]) -> str:
    """One level in words."""
    ends = ", ".join(f"{count} {end}" for end, count in level["ends"].items() if count)
    text = f"{level['level']} at once: {level['most_open']['client']} open at most, {ends}"
    text += f" in {level['wall_s']:.1f} s"
    if isinstance(level["coordinator"], dict):
        lag, memory = level["coordinator"]["event_loop_lag_s_at_most"], level["coordinator"]
        text += f"; event loop late by at most {lag['p99'] * 1000:g} ms in 99 of 100 samples"
        text += f", {lag['most'] * 1000:g} ms in all; {memory['memory_mib']['most']:.0f} MiB"
    return text + ("" if level["passed"] else f"; {level['num_problems']} PROBLEMS")
