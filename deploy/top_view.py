"""One reading of ``baton top`` as a table for a terminal, and as lines for anything else. Pure."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from deploy.readings import Rates, Reading
from deploy.status import headline, named

_COLUMNS = ("role", "instance", "device", "running", "waiting", "pages", "kv", "state_slots", "gpu")
_UNKNOWN = "-"


def lines(reading: Reading, rates: Rates) -> list[str]:
    """What is ready, how fast it is, and a line a worker of ``name=value``."""
    workers = (
        "  ".join(f"{name}={cell}" for name, cell in zip(_COLUMNS, cells, strict=True))
        for cells in _rows(reading)
    )
    return [headline(reading.status), _speed(rates), *workers]


def table(reading: Reading, rates: Rates) -> Group:
    status = reading.status
    ready = not status["problems"] and not status["draining"]
    head = Text(headline(status), style="bold green" if ready else "bold red")
    workers = Table(expand=True)
    for name in _COLUMNS:
        number = name not in ("role", "instance", "device")
        workers.add_column(name.replace("_", " "), justify="right" if number else "left")
    for cells in _rows(reading):
        workers.add_row(*cells)
    return Group(head, Text(_speed(rates)), workers)


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
        _UNKNOWN if celsius is None else f"{celsius:.0f}°C",
    )


def _number(value: float | None, digits: int = 0) -> str:
    return _UNKNOWN if value is None else f"{value:,.{digits}f}"


def _ms(seconds: float | None) -> str:
    return _number(None if seconds is None else seconds * 1000, 2)
