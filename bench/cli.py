"""``baton bench``: its commands, with the defaults that each sets for shared options."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import result_file
from bench.harness import score
from bench.harness.conformance.run import ConformanceSettings, conformance
from bench.harness.correctness.outcome import CorrectnessSettings
from bench.harness.correctness.run import correctness
from bench.harness.gpu.run import gpu
from bench.harness.gpu.settings import GpuSettings, served
from bench.harness.interference import InterferenceSettings, interference
from bench.harness.load_settings import LoadSettings
from bench.harness.loader import load
from bench.harness.options import CountedTarget, Target, command
from bench.harness.scale.plan import ScalePlan
from bench.harness.scale.run import ScaleTarget, scale
from bench.harness.score import expand
from bench.harness.throughput import throughput
from bench.harness.throughput_settings import ThroughputSettings

app = typer.Typer(
    name="bench",
    help="Measure any OpenAI-compatible server: strictly, and the same way for all.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def bench() -> None:
    """Measure any OpenAI-compatible server."""


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Results of baton bench, of any kind, or folders with the repetitions of one run."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("report.html"),
    model: Annotated[
        str | None,
        typer.Option(
            help="Which model was served, where its served name does not say so; published figures "
            "are shown beside those of the same one."
        ),
    ] = None,
    gpus: Annotated[
        list[int] | None,
        typer.Option(
            help="GPUs that served each throughput run, or each load of agents where there is no "
            "throughput run; once for each, in their order. Default: those of the machine that "
            "recorded it."
        ),
    ] = None,
    random_weights: Annotated[
        bool,
        typer.Option(help="The model cannot add: wrong spot checks are no problem."),
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(help="A folder for each figure as SVG and PNG, and its numbers as CSV."),
    ] = None,
) -> None:
    """One self-contained HTML page of one or more results. Exit status: 0, or 2 for a bad file."""
    from bench.harness.html.page import View, name_of, write_page

    try:
        named = [(name, result_file.load(path)) for name, path in expand(files)]
    except result_file.ResultFileBad as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if len(named) == 1:
        named = [(name_of(found), found) for _, found in named]
    write_page(out, named, View(model, gpus or (), random_weights, figures))
    typer.echo(result_file.one_line({"kind": "report", "file": str(out), "results": len(named)}))


PACED: dict[str, Any] = {
    "records_gpus": True, "first_byte_s": 120.0, "stall_s": 60.0, "request_s": 900.0
}  # fmt: skip
COMMANDS: dict[str, Callable[..., None]] = {
    "throughput": command(
        ThroughputSettings, throughput, CountedTarget, out=Path("throughput.json"), **PACED
    ),
    "load": command(
        LoadSettings, load, CountedTarget, give_up_after=1000, out=Path("load.json"), **PACED
    ),
    "correctness": command(
        CorrectnessSettings, correctness, Target, time_limit_s=7200.0, out=Path("correctness.json")
    ),
    "conformance": command(
        ConformanceSettings, conformance, Target, request_s=60.0, time_limit_s=1800.0
    ),
    "scale": command(
        ScalePlan, scale, ScaleTarget, connect_s=60.0, request_s=1800.0,
        give_up_after=sys.maxsize, out=Path("scale.json"),
    ),
    "gpu": command(
        GpuSettings, gpu, Target, serve=served, url=None, give_up_after=20, time_limit_s=3600.0,
        out=Path("gpu.json"),
    ),
    "interference": command(
        InterferenceSettings, interference, CountedTarget, out=Path("interference.json"), **PACED
    ),
    "score": score.score,
    "compare": score.compare,
    "report": report,
}  # fmt: skip
for name, function in COMMANDS.items():
    app.command(name)(function)
