"""Compares pools that change with fixed set-ups at full load, while its shape flips.

    python -m bench.predict.flips --gpus 2 --at-once 128 --out FILE

As many requests as ``--at-once`` are open at any time. Those that begin in the first ``PHASE_S``
have the shape ``LONG`` of shift.py, then the shape ``SHORT``, and so on.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench import environment
from bench.predict.changing import Changing, simulation
from bench.predict.goodput import Targets
from bench.predict.node import Node, Request
from bench.predict.plan import set_ups
from bench.predict.shift import LONG, PHASE_S, SHORT
from bench.predict.tables import STEPS, Table
from bench.result_file import document, save
from bench.setups import Setup
from coordinator.core.pool_targets import PoolTargets

SECONDS = 118.0
"""How long requests begin, as in the runs on GPUs."""


@dataclass(frozen=True)
class Served:
    """What a set-up serves at full load. ``attained``: the share of its requests that keep the
    targets."""

    output_tok_s: float
    requests: int
    attained: float


def served(node: Node, setup: Setup | Changing, at_once: int, targets: Targets) -> Served:
    """Simulate ``SECONDS`` with ``at_once`` requests open at any time."""
    pools, sent = simulation(node, setup), list[Request]()

    def requests() -> Iterator[Request]:
        while (now := pools.clock.now) < SECONDS:
            sent.append(Request(*(SHORT if int(now / PHASE_S) % 2 else LONG)))
            yield sent[-1]

    pools.keep_open(requests(), at_once)
    num_tokens = sum(request.output_len for request in sent)
    seconds = max(request.ended_at for request in sent)
    return Served(num_tokens / seconds, len(sent), targets.num_good(sent) / len(sent))


def main(
    gpus: Annotated[int, typer.Option(min=2, max=64)] = 2,
    at_once: Annotated[int, typer.Option(min=1, help="Requests open at any time.")] = 128,
    step: Annotated[list[Path] | None, typer.Option(help="Results with measured steps.")] = None,
    target_ttft_ms: float = 2_000.0,
    target_tpot_ms: float = 20.0,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Print what each fixed set-up and pools that change serve."""
    table, targets = Table.read(step or STEPS), Targets(target_ttft_ms / 1e3, target_tpot_ms / 1e3)
    wanted = PoolTargets(targets.ttft_s, targets.tpot_s)
    node, found = table.node(), {}
    for setup in set_ups(gpus, wanted):
        found[setup.name] = each = served(node, setup, at_once, targets)
        print(
            f"{setup.name:12} {each.output_tok_s:8.0f} output tokens a second, {each.attained:.0%} "
            "within the targets", flush=True,
        )  # fmt: skip
    if out is not None:
        settings = {"from": table.files, "at_once": at_once, "targets": asdict(wanted)}
        described = environment.describe(sys.argv[1:], "bench.predict.flips")
        results = {name: asdict(each) for name, each in found.items()}
        save(out, document("pool-flips", environment=described, settings=settings, results=results))


if __name__ == "__main__":
    typer.run(main)
