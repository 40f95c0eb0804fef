"""``baton plan``: which set-up of GPUs serves how many requests a second within targets.

    baton plan --trace conversation.jsonl --gpus 8 --target-ttft-ms 500 --target-tpot-ms 15
    baton plan --trace conversation.jsonl --gpus 8 --rate 12

The first form lists each set-up of that many GPUs by its goodput. With ``--rate`` it answers what
to buy: the fewest GPUs that serve so many requests a second, and the best set-up of them. With
``--auto`` pools that follow the load (``baton up --pools auto``) are a set-up too; they begin with
a quarter of prefill workers.

The model is that of ``python -m bench.predict`` (pools.py), with times measured on an H200. The
column "10 % slower" is the goodput if everything took a tenth longer. ``--no-spread``: no steps
that workers compute together (docs/spread.md). Memory, failures and drafts are left out. Requests
of a trace that come at the same time do so at any rate, so a set-up may have no goodput at all.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from bench import environment
from bench.harness.workload.traces import read_trace
from bench.predict.changing import Changing
from bench.predict.goodput import Goodput, Targets, Trace, cached_lens
from bench.predict.node import Node
from bench.predict.tables import STEPS, Table
from bench.result_file import document, save
from bench.setups import Setup
from coordinator.core.pool_targets import PoolTargets

SLOWER = 1.1
MOST_GPUS = 64


def set_ups(num_gpus: int, auto: PoolTargets | None = None) -> Iterator[Setup | Changing]:
    """All set-ups of so many GPUs; ``auto``: also pools that follow the load for these targets,
    which begin with a quarter of prefill workers."""
    yield Setup(0, num_gpus)
    for num_prefill in range(1, num_gpus):
        yield Setup(num_prefill, num_gpus - num_prefill)
    if auto is not None and num_gpus > 1:
        yield Changing(num_gpus, max(1, num_gpus // 4), auto)


Found = dict[Setup | Changing, tuple[Goodput, Goodput]]
"""The goodput of each set-up, and its goodput if everything took longer."""


def found_for(
    trace: Trace, node: Node, num_gpus: int, targets: Targets, *, auto: bool = False
) -> Found:
    """The set-ups of so many GPUs, the best one first. ``auto``: also pools that follow the
    load."""
    slower = node.slower(SLOWER)
    wanted = PoolTargets(targets.ttft_s, targets.tpot_s) if auto else None
    found = {
        setup: (trace.goodput(node, setup, targets), trace.goodput(slower, setup, targets))
        for setup in set_ups(num_gpus, wanted)
    }
    return dict(sorted(found.items(), key=lambda each: -each[1][0].requests_per_s))


def fewest_gpus(
    trace: Trace, node: Node, most_gpus: int, targets: Targets, rate: float, *, auto: bool = False
) -> tuple[int, Found]:
    """The number of GPUs that ``rate`` requests a second take, and the goodput of their set-ups.
    One set-up serves the rate even if everything took longer. Raises ValueError if ``most_gpus``
    are too few."""
    for num_gpus in range(1, most_gpus + 1):
        found = found_for(trace, node, num_gpus, targets, auto=auto)
        if any(slower.requests_per_s >= rate for _, slower in found.values()):
            return num_gpus, found
    best = max(slower.requests_per_s for _, slower in found.values())
    raise ValueError(
        f"--rate: {most_gpus} GPUs serve {best:.3g} requests a second within these targets, not "
        f"{rate:g}; give more --gpus, or wider targets"
    )


def shown(found: Found) -> RichTable:
    """A table of set-ups for the terminal."""
    table = RichTable(box=None, pad_edge=False)
    table.add_column("set-up", no_wrap=True)
    for name in ("req/s", "10 % slower", "out tok/s", "TTFT p50 / p90 ms", "TPOT p50 / p90 ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for setup, (goodput, slower) in found.items():
        if not goodput.requests_per_s:
            table.add_row(setup.name, "never")
            continue
        table.add_row(
            setup.name,
            f"{goodput.requests_per_s:.2f}",
            f"{slower.requests_per_s:.2f}",
            f"{goodput.output_tok_s:,.0f}",
            f"{1e3 * goodput.ttft_p50_s:,.0f} / {1e3 * goodput.ttft_p90_s:,.0f}",
            f"{1e3 * goodput.tpot_p50_s:.1f} / {1e3 * goodput.tpot_p90_s:.1f}",
        )
    return table


def plan(
    trace: Annotated[Path, typer.Option(help="A Mooncake, Bailian or Azure trace.")],
    gpus: Annotated[int, typer.Option(help="GPUs; with --rate: at most so many.")] = 8,
    target_ttft_ms: Annotated[float, typer.Option(help="Time to the first token.")] = 500.0,
    target_tpot_ms: Annotated[float, typer.Option(help="Time a token after it.")] = 15.0,
    share: Annotated[float, typer.Option(help="Share of requests that must keep both.")] = 0.9,
    rate: Annotated[float | None, typer.Option(help="Requests a second to serve.")] = None,
    requests: Annotated[int, typer.Option(help="Requests of the trace, from its begin.")] = 2_000,
    cache_tokens: Annotated[
        int, typer.Option(help="Tokens of kept prefixes; 0: none.")
    ] = 2_000_000,
    step: Annotated[
        list[Path] | None, typer.Option(help="Times: results of bench.step; without it an H200's.")
    ] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Also pools that follow the load.")] = False,
    spread: Annotated[bool, typer.Option(help="With steps computed together.")] = True,
    out: Annotated[Path | None, typer.Option(help="Also write it there, as JSON.")] = None,
) -> None:
    """Predict which pools serve a trace within targets, and how many GPUs a load takes."""
    try:
        if not 1 <= gpus <= MOST_GPUS:
            raise ValueError(f"--gpus: {gpus} is not 1 to {MOST_GPUS}")
        if requests < 2:
            raise ValueError(f"--requests: {requests} is less than 2")
        if rate is not None and not 0 < rate < 1e6:
            raise ValueError(f"--rate: {rate} is not above 0")
        targets = Targets(target_ttft_ms / 1e3, target_tpot_ms / 1e3, share)
        table = Table.read(step or STEPS)
        node = table.node(spread=spread)
        planned = read_trace(trace)[:requests]
        cached = cached_lens(planned, cache_tokens)
        replayed = Trace(planned, cached)
        if rate is None:
            num_gpus, found = gpus, found_for(replayed, node, gpus, targets, auto=auto)
        else:
            num_gpus, found = fewest_gpus(replayed, node, gpus, targets, rate, auto=auto)
    except (ValueError, KeyError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    num_tokens = sum(each.input_len for each in planned)
    console = Console(highlight=False)
    console.print(
        f"{trace.name}: {len(planned):,} requests, {num_tokens / len(planned):,.0f} prompt tokens "
        f"each, {sum(cached) / num_tokens:.0%} cached"
    )
    if rate is not None:
        console.print(f"{rate:g} requests a second take {num_gpus} GPU{'s' * (num_gpus > 1)}")
    console.print(shown(found))
    if out is not None:
        settings = {
            "from": table.files, "spread": spread, "trace": trace.name, "requests": len(planned),
            "targets": asdict(targets),
        }  # fmt: skip
        described = environment.describe(sys.argv[1:], "deploy.cli")
        results = {
            setup.name: {"goodput": asdict(goodput), "slower_10_percent": asdict(slower)}
            for setup, (goodput, slower) in found.items()
        }
        save(out, document("plan", environment=described, settings=settings, results=results))
