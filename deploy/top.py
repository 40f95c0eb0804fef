"""``baton top``: pools, queue, speed and the last requests, as they change.

Every interval: read /status, /metrics and /v1/requests, show. Without an answer it says so, and
goes on when one comes. On a terminal one screen is redrawn; anywhere else each interval prints
its lines.
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

from deploy.client_key import key_header, key_refused
from deploy.no_answer import DEFAULT_URL, no_answer
from deploy.readings import Rates, Reading, Window, read
from deploy.status import NO_ANSWER
from deploy.top_view import lines, table

_TIMEOUT_S = 5.0
_WINDOW_S = 60.0
_NUM_REQUESTS = 20
_NO_LIMIT = 10_000


class Unanswered(Exception):
    """There is nothing to show; the message says why."""


def top(
    url: Annotated[
        str, typer.Option(envvar="BATON_URL", help="Where the coordinator listens.")
    ] = DEFAULT_URL,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600.0, help="Seconds between two looks.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Show what one interval tells, and end.")
    ] = False,
) -> None:
    """Show pools, queue, speed, handoffs and the last requests live.

    Exit code with --once: 2 if nothing answers. Where the service asks for a key, it is
    BATON_API_KEY's.
    """
    window = Window(_WINDOW_S)
    try:
        with httpx.Client(timeout=_TIMEOUT_S, headers=key_header(os.environ)) as http:
            if once:
                _show_once(http, url, window, interval)
            elif sys.stdout.isatty():
                with Live(console=Console(), auto_refresh=False, screen=True) as live:
                    _watch(
                        http, url, window, interval,
                        lambda reading, rates: live.update(
                            table(reading, rates, *live.console.size), refresh=True
                        ),
                        lambda reason: live.update(Text(reason, style="red"), refresh=True),
                    )  # fmt: skip
            else:
                _watch(http, url, window, interval, _print, _complain)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # whoever read it has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_once(http: httpx.Client, url: str, window: Window, interval: float) -> None:
    try:
        window.add(_look(http, url))
        time.sleep(interval)
        reading = _look(http, url)
    except Unanswered as error:
        _complain(str(error))
        raise typer.Exit(NO_ANSWER) from error
    rates = window.add(reading)
    if sys.stdout.isatty():
        console = Console()
        console.print(table(reading, rates, console.width, height=_NO_LIMIT))
    else:
        _print(reading, rates)


def _watch(
    http: httpx.Client,
    url: str,
    window: Window,
    interval: float,
    show: Callable[[Reading, Rates], None],
    complain: Callable[[str], None],
) -> None:
    while True:
        next_at = time.monotonic() + interval
        try:
            reading = _look(http, url)
        except Unanswered as error:
            complain(f"{error}; trying again every {interval:g} s")
        else:
            show(reading, window.add(reading))
        time.sleep(max(0.0, next_at - time.monotonic()))


def _look(http: httpx.Client, url: str) -> Reading:
    """Raises Unanswered."""
    base = url.rstrip("/")
    try:
        answers = [http.get(f"{base}{path}") for path in ("/status", "/metrics")]
        for answer in answers:
            answer.raise_for_status()
        reading = read(time.monotonic(), answers[0].json(), answers[1].text)
        reading = replace(reading, **_last_requests(http, base))
        lines(reading, Rates())  # whatever is missing in it shows now
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        if code == httpx.codes.UNAUTHORIZED:
            keys = {k: v for k, v in http.headers.items() if k == "authorization"}
            raise Unanswered(f"error: {key_refused(url, keys)}") from error
        raise Unanswered(f"error: {url} answers HTTP {code}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unanswered(f"error: {no_answer(url, error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unanswered(f"error: what answers at {url} is not Baton") from error
    return reading


def _last_requests(http: httpx.Client, base: str) -> dict[str, Any]:
    """Fields of a Reading. Without Redis no request can be listed: the note says so."""
    answer = http.get(f"{base}/v1/requests", params={"limit": _NUM_REQUESTS})
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return {"requests_note": f"no requests: {answer.json()['error']['message']}"}
    answer.raise_for_status()
    found = answer.json()["data"]
    return {"requests": found, "requests_note": "" if found else "no requests yet"}


def _print(reading: Reading, rates: Rates) -> None:
    print("\n".join(lines(reading, rates)), flush=True)


def _complain(reason: str) -> None:
    print(reason, file=sys.stderr, flush=True)
