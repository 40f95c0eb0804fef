"""``baton status``: is it ready, who works there, how much waits?"""

import os
import sys
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from deploy.client_key import key_header, key_refused
from deploy.no_answer import DEFAULT_URL, no_answer

NOT_READY = 1
NO_ANSWER = 2
_TIMEOUT_S = 5.0
_NAMES = ("role", "instance", "device", "running", "waiting", "pages", "state_slots", "breaker")


def status(
    url: Annotated[
        str, typer.Option(envvar="BATON_URL", help="Where the coordinator listens.")
    ] = DEFAULT_URL,
) -> None:
    """Show readiness, queue and pools. Exit code: 0 ready, 1 not ready, 2 nothing answers."""
    headers = key_header(os.environ)
    try:
        answer = httpx.get(f"{url.rstrip('/')}/status", headers=headers, timeout=_TIMEOUT_S)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            typer.echo(f"error: {key_refused(url, headers)}", err=True)
            raise typer.Exit(NO_ANSWER)
        if answer.is_error:
            typer.echo(f"error: {url} answers {answer.status_code}: {_reason(answer)}", err=True)
            raise typer.Exit(NO_ANSWER)
        found = answer.json()
        head, rows = headline(found), [row(worker) for worker in found["workers"]]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        typer.echo(f"error: {no_answer(url, error)}", err=True)
        raise typer.Exit(NO_ANSWER) from error
    except (ValueError, KeyError, TypeError) as error:
        typer.echo(f"error: what answers at {url} is not Baton", err=True)
        raise typer.Exit(NO_ANSWER) from error
    print(head)
    if sys.stdout.isatty():
        _draw(rows)
    else:
        for cells in rows:
            print("  ".join(f"{name}={cell}" for name, cell in zip(_NAMES, cells, strict=True)))
    if found["problems"] or found["draining"]:
        raise typer.Exit(NOT_READY)


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase


def headline(found: dict[str, Any]) -> str:
    """One line from a coordinator's ServiceStatus (coordinator/core/contract.py) as JSON."""
    problems = [*found["problems"], *(["draining"] if found["draining"] else [])]
    state = f"not ready: {'; '.join(dict.fromkeys(problems))}" if problems else "ready"
    redis = "connected" if found["redis_connected"] else "not connected"
    return f"{state} ({found['queued']} queued, {found['running']} running, Redis {redis})"


def named(worker: dict[str, Any]) -> str:
    """A worker's name, and whether it takes no new work."""
    return f"{worker['instance']}{' (draining)' if worker.get('draining') else ''}"


def row(worker: dict[str, Any]) -> tuple[str, ...]:
    """One worker's cells, in the order of the columns; pools as used/all."""
    used_pages = worker["num_pages"] - worker["free_pages"]
    used_slots = worker["num_state_slots"] - worker["free_state_slots"]
    return (
        worker["role"],
        named(worker),
        worker["device"],
        str(worker["running"]),
        str(worker["waiting"]),
        f"{used_pages}/{worker['num_pages']}",
        f"{used_slots}/{worker['num_state_slots']}",
        worker["breaker"],
    )


def _draw(rows: list[tuple[str, ...]]) -> None:
    table = Table()
    for name in _NAMES:
        table.add_column(name.replace("_", " "))
    for cells in rows:
        table.add_row(*cells)
    Console().print(table)
