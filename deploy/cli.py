"""The ``baton`` command: one file for each of its commands."""

import typer

from bench import cli as bench
from deploy import chat, doctor, status, top, up

app = typer.Typer(
    name="baton",
    help="Disaggregated prefill/decode serving of large language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("up")(up.up)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("chat")(chat.chat)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.app)


if __name__ == "__main__":
    app()
