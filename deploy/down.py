"""``baton down`` and ``baton logs``: end a server that was detached, and show what it prints."""

import os
from typing import Annotated

import typer

from deploy.detached import Detached

Port = Annotated[int, typer.Option(envvar="BATON_PORT", help="The port that it was started with.")]
_FAILED = 1


def down(
    port: Port = 8000,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for its end.")] = 120.0,
) -> None:
    """Drain and end the server that `baton up --detach` started. Exit code: 0 it has ended, 1 none
    runs, or it still drains after the timeout."""
    try:
        ended = Detached.of(port, os.environ).stop(timeout)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_FAILED) from None
    if not ended:
        typer.echo(f"error: --timeout: it still drains after {timeout:g} s", err=True)
        raise typer.Exit(_FAILED)
    typer.echo(f"the server of port {port} has ended")


def logs(
    port: Port = 8000,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The last so many.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
) -> None:
    """Show what the server that `baton up --detach` started has printed."""
    try:
        server = Detached.of(port, os.environ)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_FAILED) from None
    if not server.log.is_file():
        typer.echo(f"error: {server.missing()}", err=True)
        raise typer.Exit(_FAILED)
    pid = server.pid() if follow else None
    more = ["-f", f"--pid={pid}"] if pid else []
    os.execvp("tail", ["tail", "-n", str(lines), *more, "--", str(server.log)])
