"""``python -m bench.interference_plot``: results of bench.interference as one picture.

    python -m bench.interference_plot bench/results/h200-split-1-3-interference.json \\
        bench/results/h200-both-4-interference.json --out docs/interference.svg

Each set-up has two bars per percentile of the gaps between tokens: for the streams alone, and
while long prompts arrive.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

PERCENTILES = {"p50": "itl_p50_ms", "p99": "itl_p99_ms", "max": "itl_max_ms"}
PHASES = {"quiet": ("#8a8f95", "alone"), "disturbed": ("#d55e00", "beside arriving prompts")}


def plot(results: dict[str, dict[str, Any]], out: Path) -> None:
    """Draw ``results`` of bench.interference: set-ups with their phases."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 0.4 + 1.1 * len(results)), layout="constrained")
    axes = figure.subplots()
    rows = [(setup, share) for setup in results for share in PERCENTILES]
    for offset, (phase, (colour, meaning)) in zip((-0.2, 0.2), PHASES.items(), strict=True):
        values = [results[setup][phase][PERCENTILES[share]] for setup, share in rows]
        places = [row + offset for row in range(len(rows))]
        bars = axes.barh(places, values, 0.38, color=colour, label=meaning)
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{setup}  {share}" for setup, share in rows])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("ms between two tokens of a stream")
    axes.legend(frameon=False)
    figure.savefig(out, format="svg", metadata={"Date": None})


def main(
    files: Annotated[list[Path], typer.Argument(help="Results of bench.interference.")],
    out: Annotated[Path, typer.Option(help="Where the SVG goes.")],
) -> None:
    """Draw them below one another."""
    results: dict[str, Any] = {}
    try:
        for file in files:
            results |= json.loads(file.read_text())["results"]
        plot(results, out)
    except (OSError, ValueError, KeyError) as error:
        raise typer.BadParameter(f"{error!r}") from None


if __name__ == "__main__":
    typer.run(main)
