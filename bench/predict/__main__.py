"""``python -m bench.predict``: predicts the throughput of set-ups of pools from one GPU's figures.

    python -m bench.predict --setup split:2+6 --setup colocated:8 --setup auto:2+6
    python -m bench.predict --setup split:1+3 --no-spread \\
        --measured split:1+3=bench/results/h200-split-1-3.json

It gives prompt and output tokens per second at each level, as ``baton bench throughput`` counts
them: 64 requests of 1,024 tokens in and out, and at levels above 64 as many as the level. With
``--measured``, the levels, numbers and lengths of a result are predicted, and the ratio measured /
predicted is shown. pools.py is the model; steps.py has the times of spread steps and of drafts (at
a given acceptance).
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import environment
from bench.harness.options import int_list
from bench.harness.score import WEIGHTS, weighted
from bench.predict.changing import Changing, simulation
from bench.predict.node import Level, Node
from bench.predict.pools import predicted
from bench.predict.tables import STEPS, Table
from bench.result_file import ResultFileBad, document, load, save
from bench.setups import Setup

REQUESTS = 64
LEVELS = ",".join(map(str, [*WEIGHTS, 256, 512]))


def figures(node: Node, setup: Setup | Changing, levels: tuple[int, ...]) -> dict[str, Any]:
    """Figures by requests at once, and the weighted score if all its levels are there."""
    found = {n: predicted(simulation(node, setup), Level(n, max(n, REQUESTS))) for n in levels}
    rates = {n: each.total_tok_s for n, each in found.items()}
    return {
        "total_tok_s": {n: round(rate) for n, rate in rates.items()},
        "ttft_p99_ms": {n: round(each.ttft_p99_ms) for n, each in found.items()},
        "score": round(weighted(rates)) if set(WEIGHTS) <= set(rates) else None,
    }


def compared(node: Node, setup: Setup | Changing, document: dict[str, Any]) -> dict[str, Any]:
    """Measured / predicted for each level of a result of ``baton bench throughput``. Levels with
    failed or unsent requests are left out."""
    settings = document["settings"]
    found = {}
    for level in document["results"]["levels"]:
        if level["failed"] or level["not_sent"] or not level["requests"]:
            continue
        at_once, lengths = level["concurrency"], (settings["input_len"], settings["output_len"])
        pools = simulation(node, setup)
        expected = predicted(pools, Level(at_once, level["requests"], *lengths))
        found[at_once] = round(level["total_tok_s"] / expected.total_tok_s, 3)
    return found


def set_up(text: str) -> Setup | Changing:
    """Fixed pools, or ``auto``. Raises ValueError."""
    return Changing.parse(text) if text.startswith("auto:") else Setup.parse(text)


def main(
    setup: Annotated[
        list[str], typer.Option(help="split:P+D, colocated:N or auto:P+D; several times.")
    ],
    step: Annotated[
        list[Path] | None, typer.Option(help="Results of bench.step, or of a throughput.")
    ] = None,
    levels: Annotated[str, typer.Option(help="Requests at once.")] = LEVELS,
    spread: Annotated[bool, typer.Option(help="With steps computed together.")] = True,
    drafts: Annotated[int | None, typer.Option(help="Steps with so many drafts.")] = None,
    acceptance: Annotated[float, typer.Option(help="Of each draft, given.")] = 0.8,
    measured: Annotated[
        list[str] | None, typer.Option(help="SETUP=FILE, a result of baton bench throughput.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write it there.")] = None,
) -> None:
    """Predict tokens per second at each level, and the weighted score, of each set-up."""
    try:
        at_once = int_list("--levels", levels)
        table = Table.read(step or STEPS)
        if drafts is not None:
            table = table.with_drafts(drafts, acceptance)
        node = table.node(spread=spread)
        setups = {each: set_up(each) for each in setup}
        found = {name: figures(node, pools, at_once) for name, pools in setups.items()}
        for each in measured or ():
            name, _, file = each.partition("=")
            if name not in setups:
                raise ValueError(f"--measured: {each!r} is not SETUP=FILE with one of the set-ups")
            ratios = compared(node, setups[name], load(Path(file), "throughput"))
            found[name].setdefault("measured_over_predicted", {})[Path(file).name] = ratios
    except (ValueError, KeyError, OSError, ResultFileBad) as error:
        raise typer.BadParameter(str(error)) from None
    given = None if drafts is None else {"number": drafts, "given_acceptance": acceptance}
    prediction = document(
        "prediction",
        environment=environment.describe(sys.argv[1:], "bench.predict"),
        settings={"from": table.files, "spread": spread, "drafts": given},
        results={"setups": found},
    )
    if out is not None:
        save(out, prediction)
    typer.echo(json.dumps(prediction, indent=1))


if __name__ == "__main__":
    typer.run(main)
