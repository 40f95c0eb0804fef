"""``python -m bench.spread_trials``: what an idle spread group measures, beside the shipped table.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.spread_trials --model /tmp/full --again -- --load-format dummy --device cuda

It starts ``baton up`` with ``--spread auto``, and waits until all workers that decode say in
/status that they decide by times that were measured here. Then it prints the table that they kept
beside compiled kernels: for each timed step its ms, and its ratio to ``decode/spread_steps.json``.
``--again`` first removes the tables of earlier starts.

Exit status 1 if the workers use another table when the time is up.
"""

import json
import sys
import time
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import httpx
import typer

from bench import result_file
from bench.environment import describe
from bench.setups import Setup
from bench.stack import started
from decode.spread_table import shipped
from decode.spread_trials import TimedStep

PATTERN = "baton-spread-steps-*.json"
MEASURED = "measured here"
WITHIN_S, LOOK_S = 30.0, 0.2
START_S = 170.0


def tables_in_use(url: str, within_s: float = WITHIN_S) -> dict[str, str]:
    """By worker that decodes in a spread group, where its table is from; returns once all are
    measured, or after ``within_s`` seconds."""
    ends_at = time.monotonic() + within_s
    while True:
        status = httpx.get(f"{url}/status", timeout=within_s).raise_for_status().json()
        spread = {each["instance"]: each["spread"] or {} for each in status["workers"]}
        found = {name: each["table"] for name, each in spread.items() if each.get("table")}
        if (found and set(found.values()) == {MEASURED}) or time.monotonic() > ends_at:
            return found
        Event().wait(LOOK_S)


def compared(steps: list[TimedStep]) -> list[dict[str, Any]]:
    """Timed steps with the shipped table's times."""
    table = shipped()
    return [
        step._asdict() | {"shipped_ms": round(ms, 3), "ratio": round(step.ms / ms, 3)}
        for step in steps
        if table.has(step.sharing, step.drafts)
        for ms in [table.spread_ms(step.sharing, step.rows, step.drafts, step.num_tokens)]
    ]


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    up: Annotated[list[str] | None, typer.Argument(help="For baton up, behind --.")] = None,
    setup: Annotated[str, typer.Option(help="Workers, as for bench.spread_service.")] = (
        "colocated:2"
    ),
    again: Annotated[bool, typer.Option(help="Remove tables of earlier starts.")] = False,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("spread-trials.json"),
) -> None:
    from triton import knobs

    folder = Path(knobs.cache.dir)
    if again:
        for path in folder.glob(PATTERN):
            path.unlink()
    environment = describe(sys.argv[1:], "bench.spread_trials")
    arguments = [*Setup.parse(setup).arguments(), "--model", str(model), *(up or [])]
    with started(*arguments, settings={"spread": "auto"}, start_s=START_S) as served:
        began = time.monotonic()
        tables = tables_in_use(served.url)
        took_s = round(time.monotonic() - began, 1)
        served.stop()
    print(f"tables in use {took_s} s after the start: {tables}")
    steps = []
    for path in sorted(folder.glob(PATTERN), key=lambda path: path.stat().st_mtime)[-1:]:
        steps = compared([TimedStep(*each) for each in json.loads(path.read_text())["timed"]])
        print(f"{path}\nmembers  rows  drafts       ms  shipped  ratio")
    for step in steps:
        print(f"{step['sharing']:7} {step['rows']:5} {step['drafts']:7} {step['ms']:8.2f} "
              f"{step['shipped_ms']:8.2f} {step['ratio']:6.2f}")  # fmt: skip
    is_measured = set(tables.values()) == {MEASURED}
    problems = [] if is_measured else [f"tables in use: {tables}"]
    results = {"tables": tables, "took_s": took_s, "steps": steps}
    result_file.save(out, result_file.document(
        "spread-trials", environment=environment, settings={"up": up or [], "setup": setup},
        results=results, problems=problems,
    ))  # fmt: skip
    raise typer.Exit(bool(problems))


if __name__ == "__main__":
    typer.run(main)
