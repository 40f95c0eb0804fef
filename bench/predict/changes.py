"""Compares pools that change by the policy with every fixed set-up, in the simulation.

    python -m bench.predict.changes --shift 10,10 --gpus 4 --target-ttft-ms 2000 \\
        --target-tpot-ms 20 --out bench/results/plan-shift-4.json
    python -m bench.predict.changes --trace azure_2023_conv.csv --out FILE

``--shift LONG,SHORT``: requests of 8,192 tokens in and 32 out, LONG a second, for 30 s; then of 256
in and 1,024 out, SHORT a second, for 30 s; and so on for four minutes. All are sent faster or
slower together until the targets are just kept. The pools that change begin with a quarter of
prefill workers.
"""

import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bench import environment
from bench.harness.workload.plan import Planned
from bench.harness.workload.traces import read_trace
from bench.predict.changing import Changing
from bench.predict.goodput import Targets, Trace, cached_lens
from bench.predict.plan import set_ups
from bench.predict.tables import STEPS, Table
from bench.result_file import document, save
from bench.setups import Setup
from coordinator.core.pool_policy import PoolTargets

PHASE_S, NUM_PHASES = 30.0, 8
LONG, SHORT = (8_192, 32), (256, 1_024)
"""Tokens in and out."""


def shift(long_per_s: float, short_per_s: float, seed: int = 1) -> list[Planned]:
    """Requests whose shape changes every ``PHASE_S``."""
    draw, at_s, found = random.Random(seed), 0.0, list[Planned]()
    while at_s < NUM_PHASES * PHASE_S:
        is_long = int(at_s / PHASE_S) % 2 == 0
        at_s += draw.expovariate(long_per_s if is_long else short_per_s)
        found.append(Planned(at_s, *(LONG if is_long else SHORT)))
    return found


def main(
    trace: Annotated[Path | None, typer.Option(help="A trace, as for baton plan.")] = None,
    shift_rates: Annotated[str, typer.Option("--shift", help="LONG,SHORT a second.")] = "10,10",
    gpus: Annotated[int, typer.Option(min=2, max=64)] = 8,
    target_ttft_ms: float = 500.0,
    target_tpot_ms: float = 15.0,
    requests: Annotated[int, typer.Option(help="Requests of the trace, from its begin.")] = 2_000,
    cache_tokens: Annotated[int, typer.Option(help="Tokens of kept prefixes.")] = 2_000_000,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Print the goodput of each fixed set-up, and of pools that change."""
    table, targets = Table.read(STEPS), Targets(target_ttft_ms / 1e3, target_tpot_ms / 1e3)
    if trace is not None:
        planned = list(read_trace(trace)[:requests])
    else:
        long_per_s, short_per_s = map(float, shift_rates.split(","))
        planned = shift(long_per_s, short_per_s)
    replayed = Trace(planned, cached_lens(planned, cache_tokens))
    wanted = PoolTargets(targets.ttft_s, targets.tpot_s)
    found = {}
    compared: list[Setup | Changing] = [*set_ups(gpus)]
    for setup in [*compared, Changing(gpus, max(1, gpus // 4), wanted)]:
        found[setup.name] = goodput = replayed.goodput(table.node(), setup, targets)
        print(
            f"{setup.name:12} {goodput.requests_per_s:8.2f} a second, TTFT p90 "
            f"{goodput.ttft_p90_s:.2f} s, TPOT p90 {1e3 * goodput.tpot_p90_s:.1f} ms", flush=True,
        )  # fmt: skip
    if out is not None:
        settings = {
            "from": table.files, "trace": trace.name if trace else f"shift {shift_rates}",
            "requests": len(planned), "targets": asdict(targets),
        }  # fmt: skip
        described = environment.describe(sys.argv[1:], "bench.predict.changes")
        results = {name: asdict(goodput) for name, goodput in found.items()}
        save(
            out,
            document("pool-changes", environment=described, settings=settings, results=results),
        )


if __name__ == "__main__":
    typer.run(main)
