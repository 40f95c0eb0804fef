"""``python -m bench.spread_table``: the estimated table of spread steps, which is shipped.

Local steps are those measured on one GPU (bench/results); a spread one is a local one with other
bytes of experts, and the exchanges (bench/predict/steps.py). ``python -m bench.spread_step --table
FILE`` measures both on GPUs instead.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from bench.predict.steps import EXPERT_S, Local, Spread
from bench.predict.tables import Table
from decode.spread_table import LOCAL, SHIPPED, Experts, StepTime, document
from transport.wire.spread import MAX_ROWS

ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
MEMBERS = (2, 3, 4, 6, 8)
MAX_DRAFTS = 3
BASIS = (
    "local steps measured on one H200; spread steps computed from them by the bytes of experts and "
    "the time of 80 exchanges, not measured"
)


def estimated(local: Local, drafts: int) -> list[StepTime]:
    """Of one number of drafts, local and spread."""
    tokens = 1 + drafts
    steps = [StepTime(LOCAL, rows, drafts, 1e3 * local.of(rows)) for rows in ROWS]
    for members in MEMBERS:
        for rows in ROWS:
            if rows * tokens <= MAX_ROWS:
                ms = 1e3 * Spread(local).together_s([rows] * members)
                steps.append(StepTime(members, rows, drafts, ms))
    return steps


def main(out: Annotated[Path, typer.Option(help="The table.")] = SHIPPED) -> None:
    table = Table.read()
    found, files = estimated(table.local, 0), list(table.files)
    for drafts in range(1, MAX_DRAFTS + 1):
        with_drafts = table.with_drafts(drafts, 0.0)
        found += estimated(with_drafts.local, drafts)
        files += [name for name in with_drafts.files if name not in files]
    experts = Experts(read_ms=1e3 * EXPERT_S)
    known = {"command": "python -m bench.spread_table", "from": files}
    text = json.dumps(document(found, "estimated", BASIS, experts, **known))
    out.write_text(text.replace('"steps": [[', '"steps": [\n[').replace("], [", "],\n[") + "\n")


if __name__ == "__main__":
    typer.run(main)
