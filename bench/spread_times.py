"""What ``python -m bench.spread_step`` has timed, as the table that workers read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decode.spread_table import LOCAL, Experts, Source, StepTime, document

MEASURED: Source = "measured"
BASIS = "python -m bench.spread_step, full size, random weights, 1,024 tokens of context"


def step_times(results: Mapping[str, Any], members: int) -> list[StepTime]:
    """Times of the cases in which all members had equally many sequences. Times of an engine with a
    draft layer replace those without, because workers have one."""
    found: dict[tuple[int, int, int], float] = {}
    for model in ("full", "full-drafts"):
        for row in results.get(model, {}).get("time", ()):
            lives, drafts = row["lives"], row.get("num_drafts", 0)
            if len(set(lives)) == 1:
                found[LOCAL, lives[0], drafts] = min(row["local_ms"])
                found[members, lives[0], drafts] = min(row["spread_ms"])
    return [StepTime(*key, ms) for key, ms in sorted(found.items())]


def write_table(
    path: Path, results: Mapping[str, Any], members: int, environment: Mapping[str, Any]
) -> None:
    """Raises ValueError where nothing was timed."""
    steps = step_times(results, members)
    if not steps:
        raise ValueError("no step of the full model was timed")
    text = json.dumps(document(steps, MEASURED, BASIS, Experts(), environment=dict(environment)))
    path.write_text(text + "\n")


def exchange_ms(waited_us: Mapping[str, list[float]]) -> float:
    """What a member waited in a step: for the rows of all at the same time, and for the result that
    came last."""
    return (max(waited_us["rows"]) + sum(waited_us["results"])) / 1e3
