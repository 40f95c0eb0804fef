"""Moves many sequences in simulated clusters, with workers that die at random.

    python -m tests.simulation.many_moves --moves 10000 --out FILE

Scenarios of test_moves.py and test_pools.py run one after the other: prefill and decode workers,
colocated ones, both with and without spread steps, workers whose pools change at random or follow
the load, and workers that are evened out at once. Each checks every text, that each request ends
once, and that all memory is free at the end; the first that fails ends the run.
"""

import random
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from bench.environment import describe
from bench.result_file import document, save
from tests.simulation.cluster import Cluster
from tests.simulation.spread_cluster import SpreadCluster
from tests.simulation.test_moves import COLOCATED, SPLIT, Uneven, run_scenario
from tests.simulation.test_pools import ROLES, Changing, Following

SCENARIOS = (
    (SPLIT, Cluster), (COLOCATED, Cluster), (ROLES, Changing), (ROLES, Following),
    (SPLIT, SpreadCluster), (COLOCATED, SpreadCluster), (SPLIT, Uneven), (COLOCATED, Uneven),
)  # fmt: skip
KILLS = 0.001
"""Share of the events that are the death of a worker, in two of three scenarios."""


def main(
    moves: Annotated[int, typer.Option(min=1, help="Moves to reach.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the first scenario.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Run scenarios until so many sequences have moved."""
    began = perf_counter()
    found: Counter[str] = Counter()
    while found["moved"] < moves:
        number = found["scenarios"]
        rng = random.Random(seed + number)
        roles, kind = SCENARIOS[number % len(SCENARIOS)]
        kills = KILLS if number % 3 else 0.0
        turns = not issubclass(kind, Changing)
        cluster = run_scenario(rng, roles, kind, kills=kills, large=bool(number % 7), turns=turns)
        found["changes"] += cluster.num_changed
        found.update(cluster.num_moved)
        found["scenarios"] += 1
        found["retries"] += cluster.num_retried
        found["requests"] += len(cluster.ends)
    found["seconds"] = round(perf_counter() - began)
    typer.echo(", ".join(f"{name} {number}" for name, number in found.items()))
    if out is not None:
        results = dict(found) | {"wrong": 0, "lost": 0, "leaked": 0}
        save(
            out,
            document(
                "simulated-moves",
                environment=describe(sys.argv[1:], "tests.simulation.many_moves"),
                settings={"moves": moves, "seed": seed, "kills": KILLS},
                results=results,
            ),
        )


if __name__ == "__main__":
    typer.run(main)
