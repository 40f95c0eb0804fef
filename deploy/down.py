"""``baton down`` and ``baton logs``: end a server that was detached, and show what it prints."""

import os
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

import typer

from deploy.detached import Detached
from deploy.ports import DEFAULT_URL

Port = Annotated[
    int | None,
    typer.Option(envvar="BATON_PORT", help="Its port; by default BATON_URL's, or else 8000."),
]
_FAILED = 1


def down(
    port: Port = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for its end.")] = 120.0,
) -> None:
    """Drain and end the server that `baton up --detach` started. Exit code: 0 it has ended, 1 none
    runs, or it still drains after the timeout."""
    try:
        server = _server(port, os.environ)
        ended = server.stop(timeout)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_FAILED) from None
    if not ended:
        typer.echo(f"error: --timeout: it still drains after {timeout:g} s", err=True)
        raise typer.Exit(_FAILED)
    typer.echo(f"the server of port {server.port} has ended")


def logs(
    port: Port = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The last so many.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
) -> None:
    """Show what the server that `baton up --detach` started has printed."""
    try:
        server = _server(port, os.environ)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_FAILED) from None
    if not server.log.is_file():
        typer.echo(f"error: {server.missing()}", err=True)
        raise typer.Exit(_FAILED)
    pid = server.pid() if follow else None
    more = ["-f", f"--pid={pid}"] if pid else []
    os.execvp("tail", ["tail", "-n", str(lines), *more, "--", str(server.log)])


def _server(port: int | None, environ: Mapping[str, str]) -> Detached:
    """The detached server of ``port``, or of the port in BATON_URL. Raises ValueError naming the
    setting."""
    if port is None:
        url = environ.get("BATON_URL", DEFAULT_URL)
        try:
            port = urlsplit(url).port
        except ValueError as error:
            raise ValueError(f"BATON_URL: {url!r}: {error}") from None
        if port is None:
            raise ValueError(f"--port: BATON_URL is {url!r}, which has no port")
    return Detached.of(port, environ)
