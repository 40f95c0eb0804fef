"""``baton top``: workers, queue, speed and the last requests, as they change.

At every interval it reads /status, /status/history, /metrics and /v1/requests and shows them.
Without an answer it says so, and tries again. On a terminal one screen is redrawn; anywhere else
lines are printed.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from deploy.api_client import ApiClient, ApiError, Url
from deploy.load_view import load_line
from deploy.ports import DEFAULT_URL
from deploy.readings import Rates, Reading, Window, read
from deploy.status import NO_ANSWER
from deploy.top_view import lines, table

_WINDOW_S = 60.0
_NUM_REQUESTS = 20
_NO_LIMIT = 10_000


def top(
    url: Url = DEFAULT_URL,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600.0, help="Seconds between two readings.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Show what one interval tells, and end.")
    ] = False,
) -> None:
    """Show workers, queue, speed, handoffs and the last requests live.

    Exit code with --once: 2 if nothing answers. Where the service asks for a key, it is
    BATON_API_KEY's.
    """
    try:
        with ApiClient(url, os.environ) as api:
            if once:
                _show_once(api, interval)
            elif sys.stdout.isatty():
                with Live(console=Console(), auto_refresh=False, screen=True) as live:
                    _watch(
                        api, interval,
                        lambda reading, rates: live.update(
                            table(reading, rates, *live.console.size), refresh=True
                        ),
                        lambda reason: live.update(Text(reason, style="red"), refresh=True),
                    )  # fmt: skip
            else:
                _watch(api, interval, _print, _complain)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # the reader of the output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_once(api: ApiClient, interval: float) -> None:
    window = Window(_WINDOW_S)
    try:
        window.add(_look(api))
        time.sleep(interval)
        reading = _look(api)
    except ApiError as error:
        _complain(f"error: {error}")
        raise typer.Exit(NO_ANSWER) from error
    rates = window.add(reading)
    if sys.stdout.isatty():
        console = Console()
        console.print(table(reading, rates, console.width, height=_NO_LIMIT))
    else:
        _print(reading, rates)


def _watch(
    api: ApiClient,
    interval: float,
    show: Callable[[Reading, Rates], None],
    complain: Callable[[str], None],
) -> None:
    window = Window(_WINDOW_S)
    while True:
        next_at = time.monotonic() + interval
        try:
            reading = _look(api)
        except ApiError as error:
            complain(f"error: {error}; trying again every {interval:g} s")
        else:
            show(reading, window.add(reading))
        time.sleep(max(0.0, next_at - time.monotonic()))


def _look(api: ApiClient) -> Reading:
    """Read the coordinator once. Raises ApiError."""
    status, metrics = api.get("/status"), api.get("/metrics")
    load = api.get("/status/history")
    with api.parsing():
        reading = read(time.monotonic(), status.json(), metrics.text)
        reading = replace(reading, load=load.json(), **_last_requests(api))
        # A missing field fails here, and not while it is drawn.
        lines(reading, Rates())
        load_line(reading.load, _NO_LIMIT)
    return reading


def _last_requests(api: ApiClient) -> dict[str, Any]:
    """Fields of a Reading about requests. Without Redis none can be listed: the note says so."""
    try:
        found = api.get("/v1/requests", limit=_NUM_REQUESTS).json()["data"]
    except ApiError as error:
        if error.status != httpx.codes.SERVICE_UNAVAILABLE:
            raise
        return {"requests_note": f"no requests: {error.reason}"}
    return {"requests": found, "requests_note": "" if found else "no requests yet"}


def _print(reading: Reading, rates: Rates) -> None:
    print("\n".join(lines(reading, rates)), flush=True)


def _complain(reason: str) -> None:
    print(reason, file=sys.stderr, flush=True)
