"""One reading of ``baton top`` as tables for a terminal, and as lines for anything else. Pure."""

from rich.console import Group
from rich.text import Text

from deploy.load_view import load_line
from deploy.readings import Rates, Reading
from deploy.requests_view import request_lines, requests_table
from deploy.worker_view import (
    SPREAD,
    UNKNOWN,
    headline,
    hit_rate,
    is_ready,
    shown_columns,
    worker_cells,
    worker_lines,
    worker_table,
)

_COLUMNS = (
    "role", "instance", "device", "running", "waiting", "pages", "kv", "state_slots",
    "prompt_tok_s", "output_tok_s", "hits", "kept", "drafts", "tok_step", "accepted", *SPREAD,
    "breaker", "gpu",
)  # fmt: skip
_OTHER_LINES = 9
"""Lines of the screen that show neither a worker nor a request."""


def lines(reading: Reading, rates: Rates) -> list[str]:
    """Readiness, speed, and one line of ``name=value`` for each worker and each request."""
    workers = worker_lines(_workers(reading), _COLUMNS)
    requests = request_lines(reading.requests)
    note = [reading.requests_note] if reading.requests_note else []
    speed = _speed(rates, hit_rate(reading.status["workers"]))
    return [headline(reading.status), speed, *workers, *requests, *note]


def table(reading: Reading, rates: Rates, width: int, height: int) -> Group:
    """The screen: workers, and below them as many of the last requests as fit."""
    style = "bold green" if is_ready(reading.status) else "bold red"
    workers = _workers(reading)
    columns = shown_columns(_COLUMNS, workers, width)
    shown = reading.requests[: max(0, height - _OTHER_LINES - len(workers))]
    return Group(
        Text(headline(reading.status), style=style),
        Text(_speed(rates), overflow="ellipsis", no_wrap=True),
        Text(load_line(reading.load, width), style="cyan", overflow="ellipsis", no_wrap=True),
        "",
        worker_table(workers, columns),
        "",
        requests_table(shown, width) if shown else Text(reading.requests_note),
    )


def _workers(reading: Reading) -> list[dict[str, str]]:
    celsius = reading.temperatures
    return [worker_cells(each, celsius.get(each["instance"])) for each in reading.status["workers"]]


def _speed(rates: Rates, hits: str = "") -> str:
    return "  ".join((
        f"output {_number(rates.output_tok_s)} tok/s",
        f"prompts {_number(rates.prompt_tok_s)} tok/s",
        *([f"hits {hits}"] if hits else []),
        f"handoff {_number(rates.handoff_gb_s, 3)} GB/s",
        f"p50 {_ms(rates.handoff_p50_s)} ms",
        f"p99 {_ms(rates.handoff_p99_s)} ms",
    ))  # fmt: skip


def _number(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def _ms(seconds: float | None) -> str:
    return _number(None if seconds is None else seconds * 1000, 2 if (seconds or 0) < 0.1 else 0)
