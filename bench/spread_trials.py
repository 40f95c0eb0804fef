"""Where the workers of a spread group have the times from by which they decide
(bench/spread_service.py)."""

import time
from threading import Event

import httpx

MEASURED = "measured here"
LOOK_S = 0.2


def tables_in_use(url: str, within_s: float) -> dict[str, str]:
    """By worker that decodes in a spread group, where its table is from; returns once all are
    measured, or after ``within_s`` seconds."""
    ends_at = time.monotonic() + within_s
    while True:
        status = httpx.get(f"{url}/status", timeout=within_s).raise_for_status().json()
        spread = {each["instance"]: each["spread"] or {} for each in status["workers"]}
        found = {name: each["table"] for name, each in spread.items() if each.get("table")}
        if (found and set(found.values()) == {MEASURED}) or time.monotonic() > ends_at:
            return found
        Event().wait(LOOK_S)
