"""One number for a throughput run: total tokens a second, summed over levels by weight."""

from collections.abc import Mapping

WEIGHTS: Mapping[int, int] = {1: 1, 2: 1, 4: 2, 8: 2, 16: 4, 32: 4, 64: 8}


class ScoreFailed(Exception):
    """There is no score; the message says what is missing."""


def score(tok_s: Mapping[int, float], *, correct: bool = True) -> float:
    """The sum of weight x total tok/s over the seven levels; 0 when the answers are wrong.
    Raises ScoreFailed when a level is missing: a sum of fewer is another figure."""
    if missing := [level for level in WEIGHTS if level not in tok_s]:
        raise ScoreFailed(f"no result for level {', '.join(map(str, missing))}")
    return sum(weight * tok_s[level] for level, weight in WEIGHTS.items()) if correct else 0.0
