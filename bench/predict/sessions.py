"""Compares pools that change with fixed set-ups for sessions of agents, in the simulation.

    python -m bench.predict.sessions --sessions 32 --gpus 2 \\
        --step bench/results/h200-step-fp8-256-3.json --out FILE

Each session has one request open at any time, and sends the next when it has the last token. The
prompts begin with ``--cached`` tokens that the worker keeps, with ``--shared`` the same ones for
all sessions.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench import environment
from bench.measures import percentile
from bench.predict.changing import Changing, simulation
from bench.predict.node import Node, Request
from bench.predict.plan import set_ups
from bench.predict.tables import STEPS, Table
from bench.result_file import document, save
from bench.setups import Setup
from coordinator.core.pool_targets import PoolTargets


@dataclass(frozen=True)
class Figures:
    """What the sessions of a set-up got."""

    output_tok_s: float
    ttft_p50_s: float
    tpot_p50_s: float


@dataclass(frozen=True)
class Sessions:
    """``at_once`` sessions of ``turns`` requests each; lengths in tokens. ``shared``: all begin
    with the same cached tokens."""

    at_once: int
    turns: int
    cached_len: int
    new_len: int
    output_len: int
    shared: bool

    def figures(self, node: Node, setup: Setup | Changing) -> Figures:
        """Simulate the sessions."""
        input_len, shared_len = self.cached_len + self.new_len, self.shared * self.cached_len
        requests = [
            Request(input_len, self.output_len, self.cached_len, shared_len)
            for _ in range(self.turns * self.at_once)
        ]
        simulation(node, setup).keep_open(requests, self.at_once)
        seconds = max(request.ended_at for request in requests)
        return Figures(
            len(requests) * self.output_len / seconds,
            percentile([request.ttft_s for request in requests], 0.5),
            percentile([request.tpot_s for request in requests], 0.5),
        )


def main(
    sessions: Annotated[int, typer.Option(min=1)] = 64,
    turns: Annotated[int, typer.Option(min=1, help="Requests of each session.")] = 20,
    cached: Annotated[
        int, typer.Option(min=0, help="Tokens of each prompt that are kept.")
    ] = 57_600,
    new: Annotated[int, typer.Option(min=1, help="Tokens of each prompt to compute.")] = 6_400,
    output: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 400,
    shared: Annotated[
        bool, typer.Option("--shared", help="All sessions share what is kept.")
    ] = False,
    gpus: Annotated[int, typer.Option(min=2, max=64)] = 2,
    step: Annotated[list[Path] | None, typer.Option(help="Results with measured steps.")] = None,
    target_ttft_ms: float = 2_000.0,
    target_tpot_ms: float = 50.0,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Print the output tokens per second of each fixed set-up, and of pools that change."""
    table, load = Table.read(step or STEPS), Sessions(sessions, turns, cached, new, output, shared)
    targets = PoolTargets(target_ttft_ms / 1e3, target_tpot_ms / 1e3)
    found = {}
    for setup in set_ups(gpus, targets):
        found[setup.name] = figures = load.figures(table.node(), setup)
        print(
            f"{setup.name:12} {figures.output_tok_s:8.0f} output tokens a second, TTFT p50 "
            f"{figures.ttft_p50_s:.2f} s, TPOT p50 {1e3 * figures.tpot_p50_s:.1f} ms", flush=True,
        )  # fmt: skip
    if out is not None:
        settings = {"from": table.files, "sessions": asdict(load), "targets": asdict(targets)}
        described = environment.describe(sys.argv[1:], "bench.predict.sessions")
        results = {name: asdict(figures) for name, figures in found.items()}
        save(
            out,
            document("pool-sessions", environment=described, settings=settings, results=results),
        )


if __name__ == "__main__":
    typer.run(main)
