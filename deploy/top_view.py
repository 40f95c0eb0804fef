"""One reading of ``baton top`` as tables for a terminal, and as lines for anything else. Pure."""

from typing import Any

from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from deploy.readings import Rates, Reading
from deploy.requests_view import request_lines, requests_table
from deploy.status import headline, named

_COLUMNS = (
    "role", "instance", "device", "running", "waiting", "pages", "kv", "state_slots",
    "prompt_tok_s", "output_tok_s", "breaker", "gpu",
)  # fmt: skip
_WORDS = ("role", "instance", "device", "breaker")
_HEADINGS = {
    "running": "run", "waiting": "wait", "state_slots": "slots",
    "prompt_tok_s": "in tok/s", "output_tok_s": "out tok/s",
}  # fmt: skip
_NOT_IF_NARROW = ("role", "device", "pages")
_WIDE = 110
_AROUND = 8
"""Lines of the screen that are neither a worker nor a request."""
_UNKNOWN = "-"


def lines(reading: Reading, rates: Rates) -> list[str]:
    """What is ready, how fast it is, and a line of ``name=value`` a worker and a request."""
    workers = (
        "  ".join(f"{name}={cell}" for name, cell in zip(_COLUMNS, cells, strict=True))
        for cells in _rows(reading)
    )
    requests = request_lines(reading.requests)
    note = [reading.requests_note] if reading.requests_note else []
    return [headline(reading.status), _speed(rates), *workers, *requests, *note]


def table(reading: Reading, rates: Rates, width: int, height: int) -> Group:
    """As many of the last requests as fit below the workers, on a screen of this size."""
    status = reading.status
    ready = not status["problems"] and not status["draining"]
    head = Text(headline(status), style="bold green" if ready else "bold red")
    names = [name for name in _COLUMNS if width >= _WIDE or name not in _NOT_IF_NARROW]
    workers = Table(box=None, pad_edge=False)
    for name in names:
        justify: JustifyMethod = "left" if name in _WORDS else "right"
        workers.add_column(_HEADINGS.get(name, name), justify=justify, no_wrap=True)
    for cells in _rows(reading):
        workers.add_row(*(cells[_COLUMNS.index(name)] for name in names))
    room = max(0, height - _AROUND - len(reading.status["workers"]))
    shown = reading.requests[:room]
    requests = requests_table(shown, width) if shown else Text(reading.requests_note)
    return Group(head, Text(_speed(rates)), "", workers, "", requests)


def _speed(rates: Rates) -> str:
    return "  ".join((
        f"output {_number(rates.output_tok_s)} tok/s",
        f"prompts {_number(rates.prompt_tok_s)} tok/s",
        f"handoff {_number(rates.handoff_gb_s, 3)} GB/s",
        f"p50 {_ms(rates.handoff_p50_s)} ms",
        f"p99 {_ms(rates.handoff_p99_s)} ms",
    ))  # fmt: skip


def _rows(reading: Reading) -> list[tuple[str, ...]]:
    return [_row(worker, reading.temperatures) for worker in reading.status["workers"]]


def _row(worker: dict[str, Any], temperatures: dict[str, float]) -> tuple[str, ...]:
    pages, slots = worker["num_pages"], worker["num_state_slots"]
    used_pages, used_slots = pages - worker["free_pages"], slots - worker["free_state_slots"]
    celsius = temperatures.get(worker["instance"])
    return (
        worker["role"],
        named(worker),
        worker["device"],
        str(worker["running"]),
        str(worker["waiting"]),
        f"{used_pages}/{pages}",
        f"{100 * used_pages / pages:.0f}%" if pages else _UNKNOWN,
        f"{used_slots}/{slots}",
        f"{worker['prompt_tokens_per_s']:,.0f}",
        f"{worker['output_tokens_per_s']:,.0f}",
        worker["breaker"],
        _UNKNOWN if celsius is None else f"{celsius:.0f}°C",
    )


def _number(value: float | None, digits: int = 0) -> str:
    return _UNKNOWN if value is None else f"{value:,.{digits}f}"


def _ms(seconds: float | None) -> str:
    return _number(None if seconds is None else seconds * 1000, 2)
