"""``python -m bench.spread_step``: decode steps that several GPUs of a node compute together.

A process for each GPU has a worker's engine with random weights. First a model of four layers, then
the same with drafts, then one of full size, with 1,024 tokens of context, and the same with its
draft layer:

    bits    Tokens, logits and states of spread steps against local steps, by the members' rows.
    stall   A member does not launch: how long the others' steps take, and which member they name.
    time    ms per step, local and spread, by the sequences of all members, and by drafts; ms of a
            spread step that a member waits, by member.
    lend    The same for a group whose last member has no rows and lends its bandwidth.

``--table FILE`` writes what was timed as workers read it (BATON_SPREAD_TABLE).

Exit status 1 when bits differ or a case failed. A case that takes too long ends its model's
processes, and the next model goes on.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.engine_bench import FULL_SIZE
from bench.processes import MemberFailed, Members
from bench.recording import Recording
from bench.spread.cases import Bench
from decode.spread_table import LOCAL, Experts, Source, StepTime, document
from transport.wire.spread import MAX_ROWS

CONTEXT, SMALL_LAYERS, MAX_DRAFTS = 1024, 4, 3
MEMBER = [sys.executable, "-m", "bench.spread.member"]
MEASURED: Source = "measured"
BASIS = "python -m bench.spread_step, full size, random weights, 1,024 tokens of context"


def small(bench: Bench, count: int) -> None:
    """Whether the bits are right, with few layers."""
    rest = count - 2
    for lives in (
        (1, 1), (1, 0), (3, 8), (32, 32), (0, 29), (17, 1), (64, 64), (50, 64), (128, 128),
        (256, 256),
    ):  # fmt: skip
        bench.bits([*lives, *[lives[0]] * rest])
    bench.stall(32)
    bench.bits([64, 3, *[0] * rest])
    bench.lend(32)
    bench.time([8] * count, steps=4)


def with_drafts(bench: Bench, count: int) -> None:
    """Whether the bits are right where drafts are verified."""
    rest = [0] * (count - 2)
    for lives in ((1, 2), (8, 3), (16, 16), (0, 5)):
        bench.bits([*lives, *rest], [0, 3, 1, 2, 0, 3])
    bench.stall(5, [0, 3, 3, 3])
    bench.bits([4, 9, *rest], [0, 3, 3])
    bench.time([4] * count, num_drafts=2, steps=4)


def full(bench: Bench, count: int) -> None:
    """How fast a step of the full model is."""
    for live in (32, 128):
        bench.bits([live] * count)
    for live in FULL.buckets:
        bench.time([live] * count)
    bench.lend(64)
    bench.bits([1, 32, *[0] * (count - 2)])
    bench.time([64, *[0] * (count - 1)])


def full_with_drafts(bench: Bench, count: int) -> None:
    """How fast steps with drafts are."""
    for live in FULL_DRAFTS.buckets:
        for num_drafts in range(1 + MAX_DRAFTS):
            if live * (1 + num_drafts) <= MAX_ROWS:
                bench.time([live] * count, num_drafts, steps=16)


@dataclass(frozen=True)
class Cases:
    """What is run with one model. ``buckets``: sequences of the steps that are captured, the most
    of a member last. ``num_layers`` None: the model has full size."""

    run: Callable[[Bench, int], None]
    buckets: tuple[int, ...]
    num_layers: int | None = None
    max_drafts: int = 0
    context: int = 0


FULL = Cases(full, (8, 16, 32, 64, 128, 192, 256), context=CONTEXT)
FULL_DRAFTS = Cases(full_with_drafts, (4, 8, 16, 32, 64), max_drafts=MAX_DRAFTS, context=CONTEXT)
CASES = {
    "small": Cases(small, (1, 8, 32, 64, 128, 256), SMALL_LAYERS),
    "drafts": Cases(with_drafts, (1, 2, 4, 8, 16), SMALL_LAYERS, MAX_DRAFTS),
    "full": FULL,
    "full-drafts": FULL_DRAFTS,
}


def main(
    gpus: int = 2,
    models: Annotated[str, typer.Option(help="Of small, drafts, full and full-drafts.")] = (
        "small,drafts,full,full-drafts"
    ),
    share_gpu: Annotated[
        bool, typer.Option(help="All members on one GPU: bits, no times.")
    ] = False,
    logs: Annotated[Path, typer.Option(help="Folder of the members' output.")] = Path(
        "/tmp/spread"
    ),
    out: Annotated[Path, typer.Option(help="Result file.")] = Path(
        "bench/results/spread-step.json"
    ),
    table: Annotated[Path | None, typer.Option(help="Also write a table for workers.")] = None,
) -> None:
    if table is not None and share_gpu:
        raise typer.BadParameter("--table: members that share a GPU compute in turns")
    settings = {"gpus": gpus, "share_gpu": share_gpu, "context": CONTEXT}
    run = Recording("bench.spread_step", out, settings)
    for name in models.split(","):
        cases, began = CASES[name], time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, Members(gpus, logs / name, MEMBER) as members:
            bench = Bench(members, run.save)
            run.results[name], bench.problems = bench.results, run.problems
            try:
                bench.start(
                    model_folder(Path(folder), cases.num_layers), cases.buckets,
                    share_gpu=share_gpu, max_drafts=cases.max_drafts, context=cases.context,
                )  # fmt: skip
                print(f"{name}: ready after {time.perf_counter() - began:.1f} s", flush=True)
                cases.run(bench, gpus)
            except MemberFailed as error:
                run.problems.append(f"{name}: {error}")
                print(f"{name}: {error}", flush=True)
        run.save()
    run.save(stopped=None)
    if table is not None and not run.problems:
        write_table(table, run.results, gpus, run.environment)
    run.end()


def model_folder(folder: Path, num_layers: int | None) -> Path:
    """The full-size model, or its first layers."""
    if num_layers is None:
        return FULL_SIZE
    config = json.loads((FULL_SIZE / "config.json").read_text())
    text = config["text_config"]
    text["num_hidden_layers"] = num_layers
    text["layer_types"] = text["layer_types"][:num_layers]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


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


if __name__ == "__main__":
    typer.run(main)
