"""``baton bench``: one file for each of its commands. What is heavy is imported inside them."""

import typer

from bench.commands import conformance, correctness, gpu, load, report, scale, score, throughput

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


app.command("throughput")(throughput.throughput)
app.command("correctness")(correctness.correctness)
app.command("conformance")(conformance.conformance)
app.command("scale")(scale.scale)
app.command("gpu")(gpu.gpu)
app.command("load")(load.load)
app.command("score")(score.score)
app.command("compare")(score.compare)
app.command("report")(report.report)
