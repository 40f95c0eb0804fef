"""``python -m bench.spread_table``: the table of spread steps that is shipped.

Local steps and those of two members are as ``python -m bench.spread_step --gpus 2 --table FILE``
measured them. Steps of more members are estimated: local steps with the bytes of a member's share
of the experts, and the exchanges (bench/predict/steps.py), times measured over estimated of two.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from bench.predict.steps import EXPERT_S, Local, Spread
from bench.predict.tables import Table
from decode.spread_table import LOCAL, SHIPPED, Experts, StepTime, between, document
from transport.wire.spread import MAX_ROWS

MEASURED = Path(__file__).parent / "results" / "h200x2-spread-table.json"
PAIR = 2
"""Members whose steps were measured."""
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
MEMBERS = (2, 3, 4, 6, 8)
MAX_DRAFTS = 3
BASIS = (
    "local steps and those of two members measured on two H200s; those of more members computed by "
    "the bytes of experts and the time of 80 exchanges, and corrected by what two members took"
)


def estimated(local: Local, drafts: int) -> list[StepTime]:
    """Estimated local and spread steps with ``drafts`` drafts."""
    tokens = 1 + drafts
    steps = [StepTime(LOCAL, rows, drafts, 1e3 * local.of(rows)) for rows in ROWS]
    for members in MEMBERS:
        for rows in ROWS:
            if rows * tokens <= MAX_ROWS:
                ms = 1e3 * Spread(local).together_s([rows] * members)
                steps.append(StepTime(members, rows, drafts, ms))
    return steps


def corrected(estimates: Iterable[StepTime], measured: Iterable[StepTime]) -> list[StepTime]:
    """Measured steps as they are, and the estimates of others times measured over estimated: of
    local steps for local ones, of two members for more, with as many drafts or next fewer."""
    known = {step[:3]: step.ms for step in measured}
    found = {step[:3]: step.ms for step in estimates}
    ratios: dict[tuple[int, int], dict[int, float]] = {}
    for (sharing, rows, drafts), ms in known.items():
        if (sharing, rows, drafts) in found:
            of_rows = ratios.setdefault((sharing, drafts), {})
            of_rows[rows] = ms / found[sharing, rows, drafts]
    for (sharing, rows, drafts), ms in list(found.items()):
        like = min(sharing, PAIR)
        nearest = max(k for s, k in ratios if s == like and k <= drafts)
        curve = sorted(ratios[like, nearest].items())
        within = min(max(rows, curve[0][0]), curve[-1][0])
        found[sharing, rows, drafts] = ms * between(curve, within)
    return [StepTime(*key, ms) for key, ms in sorted({**found, **known}.items())]


def main(
    measured: Annotated[Path, typer.Option(help="Of bench.spread_step --table.")] = MEASURED,
    out: Annotated[Path, typer.Option(help="The table.")] = SHIPPED,
) -> None:
    table = Table.read()
    found, files = estimated(table.local, 0), [measured.name, *table.files]
    for drafts in range(1, MAX_DRAFTS + 1):
        with_drafts = table.with_drafts(drafts, 0.0)
        found += estimated(with_drafts.local, drafts)
        files += [name for name in with_drafts.files if name not in files]
    steps = [StepTime(*each) for each in json.loads(measured.read_text())["steps"]]
    experts = Experts(read_ms=1e3 * EXPERT_S)
    known = {"command": "python -m bench.spread_table", "from": files}
    more = {**known, "estimated": [each for each in MEMBERS if each > PAIR]}
    text = json.dumps(document(corrected(found, steps), "measured", BASIS, experts, **more))
    out.write_text(text.replace('"steps": [[', '"steps": [\n[').replace("], [", "],\n[") + "\n")


if __name__ == "__main__":
    typer.run(main)
