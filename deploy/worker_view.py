"""The workers of a coordinator's /status, as a table for a terminal or as lines of ``name=value``.
Pure.

A status is the JSON of ServiceStatus (coordinator/core/contract.py).
"""

from collections.abc import Sequence
from typing import Any

from rich.console import JustifyMethod
from rich.table import Table

KEPT = ("role", "instance", "running", "waiting")
"""Columns that a table has on any screen, whatever they hold."""
_DROPPED_FIRST = (
    "times_from", "waits_for", "accepted", "kept", "device", "pages", "drafts", "step_ms",
    "state_slots", "prompt_tok_s", "hits", "gpu", "spread", "tok_step", "breaker", "kv",
    "output_tok_s",
)  # fmt: skip
_EMPTY = {"drafts": "0", "kept": "0", "breaker": "closed"}
"""What a column holds that tells nothing, where that is not UNKNOWN."""
_GAP = 2
_LEFT = ("role", "instance", "device", "breaker")
_HEADINGS = {
    "running": "run", "waiting": "wait", "state_slots": "slots",
    "prompt_tok_s": "in tok/s", "output_tok_s": "out tok/s", "tok_step": "tok/step",
    "step_ms": "ms/step", "times_from": "times from", "waits_for": "waits for",
}  # fmt: skip
SPREAD = ("spread", "step_ms", "times_from", "waits_for")
"""Columns about steps that workers compute together."""
UNKNOWN = "-"


def headline(status: dict[str, Any]) -> str:
    """One line: whether the service is ready, its problems, and its number of requests."""
    problems = [*status["problems"], *(["draining"] if status["draining"] else [])]
    state = "ready" if is_ready(status) else "not ready"
    state += f": {'; '.join(dict.fromkeys(problems))}" if problems else ""
    redis = "connected" if status["redis_connected"] else "not connected"
    if why := status.get("pools_why"):
        state += f"; {why}"
    if moves := status.get("moves_last_minute"):
        state += f"; {moves} moves in the last minute"
    return f"{state} ({status['queued']} queued, {status['running']} running, Redis {redis})"


def is_ready(status: dict[str, Any]) -> bool:
    return bool(status["ready"] and not status["draining"])


def worker_cells(worker: dict[str, Any], celsius: float | None = None) -> dict[str, str]:
    """The cells of one worker, by column; memory as used/all."""
    pages, slots = worker["num_pages"], worker["num_state_slots"]
    used_pages, used_slots = pages - worker["free_pages"], slots - worker["free_state_slots"]
    return {
        "role": worker["role"],
        "instance": worker["instance"] + (" (draining)" if worker.get("draining") else ""),
        "device": worker["device"],
        "running": str(worker["running"]),
        "waiting": str(worker["waiting"]),
        "pages": f"{used_pages}/{pages}",
        "kv": f"{100 * used_pages / pages:.0f}%" if pages else UNKNOWN,
        "state_slots": f"{used_slots}/{slots}",
        "prompt_tok_s": f"{worker['prompt_tokens_per_s']:,.0f}",
        "output_tok_s": f"{worker['output_tokens_per_s']:,.0f}",
        "tok_step": _tokens_per_step(worker),
        "drafts": str(worker["drafts"]),
        "accepted": _acceptance(worker),
        "hits": hit_rate([worker]),
        "kept": _kept(worker),
        **_spread(worker["spread"]),
        "breaker": worker["breaker"],
        "gpu": UNKNOWN if celsius is None else f"{celsius:.0f}°C",
    }


def hit_rate(workers: Sequence[dict[str, Any]]) -> str:
    """Share of the last minute's prompt tokens that were found in the prefix cache."""
    queried = sum(worker["queried_tokens"] for worker in workers)
    reused = sum(worker["reused_tokens"] for worker in workers)
    return f"{100 * reused / queried:.0f}%" if queried else UNKNOWN


def _kept(worker: dict[str, Any]) -> str:
    """Number of prefixes on the device and in the host tier: "12+40"."""
    host = worker["kept_prefixes_host"]
    return f"{worker['kept_prefixes']}+{host}" if host else str(worker["kept_prefixes"])


def _tokens_per_step(worker: dict[str, Any]) -> str:
    tokens = worker["tokens_per_step"]
    return UNKNOWN if tokens is None else f"{tokens:.2f}"


def _acceptance(worker: dict[str, Any]) -> str:
    """Acceptance in per cent of the first draft, the second, …: "88/61%". "80/81% given 80%": by
    the setting of a benchmark, not by the model."""
    shares, given = worker["draft_acceptance"], worker["given_acceptance"]
    measured = "/".join(f"{100 * share:.0f}" for share in shares) + "%" if shares else ""
    setting = "" if given is None else f"given {100 * given:g}%"
    return f"{measured} {setting}".strip() or UNKNOWN


def _spread(found: dict[str, Any] | None) -> dict[str, str]:
    """Spread steps of the last minute, by column. "75%/4": share of steps that were computed
    together, and members of the group. "6.4/9.8": ms of such a step, and of a local one. "measured
    here": where the times are from by which the worker decides when to compute steps together.
    "decode-1a2b:0.3ms": the member that the device waited for longest, and how long per step."""
    if found is None:
        return dict.fromkeys(SPREAD, UNKNOWN)
    share = UNKNOWN if found["share"] is None else f"{100 * found['share']:.0f}%"
    in_group = found["mode"] in ("spread", "local")
    times = [found["step_ms"], found["local_step_ms"]]
    name, wait_ms = max(found["within_ms"].items(), key=lambda each: each[1], default=("", 0.0))
    return {
        "spread": f"{share}/{len(found['members'])}" if in_group else found["mode"],
        "step_ms": "/".join(UNKNOWN if ms is None else f"{ms:.1f}" for ms in times),
        "times_from": found["table"] or UNKNOWN,
        "waits_for": f"{name}:{wait_ms:.1f}ms" if name else UNKNOWN,
    }


def shown_columns(columns: Sequence[str], workers: list[dict[str, str]], width: int) -> list[str]:
    """The columns of a table that fits ``width``: without those that tell nothing of any worker,
    and without the least important ones as long as the table is too wide."""
    shown = [
        name
        for name in columns
        if name in KEPT or any(cells[name] != _EMPTY.get(name, UNKNOWN) for cells in workers)
    ]
    for name in _DROPPED_FIRST:
        if _width(shown, workers) <= width:
            break
        if name in shown and name not in KEPT:
            shown.remove(name)
    return shown


def _width(columns: Sequence[str], workers: list[dict[str, str]]) -> int:
    cells = (
        max([len(_HEADINGS.get(name, name)), *(len(cells[name]) for cells in workers)])
        for name in columns
    )
    return sum(cells) + _GAP * (len(columns) - 1)


def worker_lines(workers: list[dict[str, str]], columns: Sequence[str]) -> list[str]:
    return ["  ".join(f"{name}={cells[name]}" for name in columns) for cells in workers]


def worker_table(workers: list[dict[str, str]], columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        justify: JustifyMethod = "left" if name in _LEFT else "right"
        table.add_column(_HEADINGS.get(name, name), justify=justify, no_wrap=True)
    for cells in workers:
        table.add_row(*(cells[name] for name in columns))
    return table
