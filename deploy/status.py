"""``baton status``: is the service ready, which workers are there, how much waits?"""

import os
import sys

import typer
from rich.console import Console

from deploy.api_client import ApiClient, ApiError, Url
from deploy.ports import DEFAULT_URL
from deploy.worker_view import (
    SPREAD,
    headline,
    is_ready,
    shown_columns,
    worker_cells,
    worker_lines,
    worker_table,
)

NOT_READY = 1
NO_ANSWER = 2
_COLUMNS = (
    "role", "instance", "device", "running", "waiting", "pages", "state_slots", "hits", "kept",
    "drafts", "tok_step", "accepted", *SPREAD, "breaker",
)  # fmt: skip


def status(url: Url = DEFAULT_URL) -> None:
    """Show readiness, queue and workers. Exit code: 0 ready, 1 not ready, 2 nothing answers."""
    try:
        with ApiClient(url, os.environ) as api:
            answer = api.get("/status")
            with api.parsing():
                found = answer.json()
                head, ready = headline(found), is_ready(found)
                workers = [worker_cells(worker) for worker in found["workers"]]
    except ApiError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(NO_ANSWER) from error
    print(head)
    if sys.stdout.isatty():
        console = Console()
        columns = shown_columns(_COLUMNS, workers, console.width)
        console.print(worker_table(workers, columns))
    else:
        for line in worker_lines(workers, _COLUMNS):
            print(line)
    if not ready:
        raise typer.Exit(NOT_READY)
