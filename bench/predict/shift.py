"""``python -m bench.predict.shift``: writes a trace whose shape flips, for ``baton plan --auto``.

python -m bench.predict.shift --per-s 20 --out shift.csv
baton plan --trace shift.csv --gpus 4 --auto --requests 5000 --target-ttft-ms 2000 \\
    --target-tpot-ms 20

A replay at another rate has phases of another length, so ``--per-s`` should be near the rate that
is found.
"""

import csv
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bench.harness.workload.plan import Planned

PHASE_S, NUM_PHASES = 30.0, 8
LONG, SHORT = (8_192, 32), (256, 1_024)
"""Tokens in and out."""


def shift(long_per_s: float = 10.0, short_per_s: float = 10.0, seed: int = 1) -> list[Planned]:
    """Requests of the shape ``LONG`` for ``PHASE_S``, then of the shape ``SHORT``, and so on."""
    draw, at_s, found = random.Random(seed), 0.0, list[Planned]()
    while at_s < NUM_PHASES * PHASE_S:
        is_long = int(at_s / PHASE_S) % 2 == 0
        at_s += draw.expovariate(long_per_s if is_long else short_per_s)
        found.append(Planned(at_s, *(LONG if is_long else SHORT)))
    return found


def main(
    out: Annotated[Path, typer.Option(help="The trace, in the format of Azure's.")],
    per_s: Annotated[float, typer.Option(min=0.1, help="Requests a second.")] = 10.0,
) -> None:
    with out.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
        for each in shift(per_s, per_s):
            at = datetime.fromtimestamp(each.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            lines.writerow((at, each.input_len, each.output_len))


if __name__ == "__main__":
    typer.run(main)
