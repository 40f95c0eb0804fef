"""``python -m bench.spread_service``: tokens a second through HTTP, with spread steps and without.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.spread_service --model /tmp/full --stacks colocated:2,colocated:2/off \\
        --levels 64,128,256 --out bench/results/h200x2-spread-service.json -- \\
        --load-format dummy --device cuda --speculate off

For each stack (a set-up of bench/setups.py, then ``/`` and what ``--spread`` is; ``auto`` by
default) it starts ``baton up``, waits a few seconds while idle groups time steps, records which
table they decide by, and measures each level with ``baton bench throughput``: all requests of a
level begin at once. Beside the tokens a second it records what the workers counted meanwhile:
spread and local decode steps, seconds in each, waits for others, and aborted steps.

Exit status: 0, 1 when a request failed or a level was not measured.
"""

import time
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from bench.commands import END_S
from bench.harness.options import int_list
from bench.setups import Setup
from bench.stack import Stack
from bench.stack_runs import SPREAD_COUNTERS, StackRuns, measured

LEVEL_S = 240.0
TABLES_S = 8.0
"""Seconds for an idle group to time its steps before the first level."""
MEASURED = "measured here"
LOOK_S = 0.2


def tables_in_use(served: Stack, within_s: float) -> dict[str, str]:
    """By worker that decodes in a spread group, where its table is from; returns once all are
    measured, or after ``within_s`` seconds."""
    ends_at = time.monotonic() + within_s
    while True:
        spread = {each["instance"]: each["spread"] or {} for each in served.workers()}
        found = {name: each["table"] for name, each in spread.items() if each.get("table")}
        if (found and set(found.values()) == {MEASURED}) or time.monotonic() > ends_at:
            return found
        Event().wait(LOOK_S)


def measured_level(
    served: Stack, model: Path, level: int, lengths: tuple[int, int], rounds: int
) -> tuple[dict[str, Any], list[str]]:
    """The throughput at a level, with what the workers counted, and the run's problems."""
    results, problems = measured(
        served, SPREAD_COUNTERS, "throughput", "--tokenizer", str(model), "--levels", str(level),
        "--input-len", str(lengths[0]), "--output-len", str(lengths[1]),
        "--requests", str(level * rounds), "--rounds", str(rounds), "--spot-checks", "0",
        "--time-limit-s", str(LEVEL_S), within_s=LEVEL_S + END_S,
    )  # fmt: skip
    (found,) = results["levels"]
    return found | {"counters": results["counters"]}, problems


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    up: Annotated[list[str] | None, typer.Argument(help="For baton up, behind --.")] = None,
    stacks: Annotated[str, typer.Option(help="SETUP[/SPREAD], commas between.")] = "colocated:2",
    levels: Annotated[str, typer.Option(help="Requests at once.")] = "64,128,256",
    input_len: int = 1024,
    output_len: int = 1024,
    rounds: Annotated[int, typer.Option(help="Times that a level is filled.")] = 1,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("spread-service.json"),
) -> None:
    lengths = input_len, output_len
    settings = {"up": up or [], "input_len": input_len, "output_len": output_len}
    runs = StackRuns("bench.spread_service", out, settings)

    def load(name: str, served: Stack, row: dict[str, Any]) -> None:
        if not name.endswith("/off"):
            row["tables"] = tables_in_use(served, TABLES_S)
        for level in int_list("--levels", levels):
            found, wrong = measured_level(served, model, level, lengths, rounds)
            row[str(level)] = found
            runs.problems += [f"{name} at {level}: {each}" for each in wrong]
            print(f"{name:16} {level:4} at once: {line(found)}", flush=True)

    for name in stacks.split(","):
        setup, _, spread = name.partition("/")
        arguments = [*Setup.parse(setup).arguments(), "--model", str(model), *(up or [])]
        runs.measure(name, arguments, partial(load, name), {"spread": spread or "auto"})
    runs.end()


def line(found: dict[str, Any]) -> str:
    """One level in words."""
    counters = found["counters"]
    spread, local = counters["spread_steps"], counters["spread_local_steps"]
    spread_ms = 1e3 * counters["spread_step_seconds"] / max(1.0, spread)
    local_ms = 1e3 * counters["spread_local_step_seconds"] / max(1.0, local)
    return (
        f"{found['total_tok_s']:9.0f} tok/s; steps of all workers: {spread:.0f} spread of "
        f"{spread_ms:.2f} ms, {local:.0f} local of {local_ms:.2f} ms, "
        f"{counters['spread_aborts']:.0f} aborted, host waits {counters['spread_wait_seconds']} s"
    )


if __name__ == "__main__":
    typer.run(main)
