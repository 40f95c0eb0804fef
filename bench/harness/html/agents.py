"""Report sections of loads of agents: what a user and a GPU get at each level, in one figure of all
runs; for each level the cached share and the time to first token of each turn."""

from collections.abc import Sequence
from typing import Any

from bench.harness.html.charts import Chart, Line
from bench.harness.html.runs import Run
from bench.harness.html.sections import Section, Table
from bench.harness.html.trade import draw_trade

_SHARES = ("p50", "p90", "p99")
_MEANS = ("turn", "requests", "failed", "prompt_tokens", "cached_tokens")


def levels_of(runs: Sequence[Run]) -> Section:
    """The figure of all runs, a point for each number of agents."""
    section = Section("Agents at once", terms=("TTFT", "TPOT"))
    draw_trade(section, runs)
    rows = [
        [
            run.name,
            level,
            *(run.median(level, key) for key in ("output_tok_s", "total_tok_s")),
            1000 / tpot if (tpot := run.median(level, "tpot_ms", "p50")) else None,
            tpot,
            *(run.median(level, "ttft_ms", share) for share in ("p50", "p99")),
            _percent(run.median(level, "hit_rate")),
        ]
        for run in runs
        for level in run.levels
    ]
    headings = ["run", "agents", "output tok/s", "total tok/s", "tok/s a user", "TPOT p50"]
    headings += ["TTFT p50", "TTFT p99", "cached %"]
    section.tables.append(Table(headings, rows))
    return section


def agents(found: dict[str, Any]) -> list[Section]:
    """The sections of each level of one result."""
    return [part for level in found["results"]["levels"] for part in _level(level)]


def _level(found: dict[str, Any]) -> list[Section]:
    turns, number = found["by_turn"], found["concurrency"]
    cards = [
        ("agents", number),
        ("output tok/s", found.get("output_tok_s")),
        ("% of prompt tokens cached, from turn 2 on", _percent(found["hit_rate_later"])),
        ("% in the turn with the least, from turn 2 on", _percent(found["lowest_hit_rate_later"])),
        ("TTFT p50 of the last turn / of turn 2", found["ttft_growth"]),
        ("total tok/s", found.get("total_tok_s")),
        ("failed", found["failed"]),
        ("turns never sent", found["not_sent"]),
    ]
    section = Section(f"{number} agents", cards, ("TTFT", "TPOT", "End to end"))
    cached = [Line("cached", [(turn["turn"], _percent(turn["hit_rate"])) for turn in turns])]
    section.draw("Prompt tokens that were cached", Chart(cached, "turn", "%", top=105))
    ttft = [
        Line(share, [(turn["turn"], (turn["ttft_ms"] or {}).get(share)) for turn in turns])
        for share in _SHARES
    ]
    section.draw("TTFT", Chart(ttft, "turn", "ms"))
    spreads = [(key, share) for key in ("ttft_ms", "tpot_ms", "e2e_ms") for share in ("p50", "p99")]
    rows = [
        [
            *map(turn.get, _MEANS),
            _percent(turn["hit_rate"]),
            *[(turn[key] or {}).get(share) for key, share in spreads],
        ]
        for turn in turns
    ]
    headings = [*(name.replace("_", " ") for name in _MEANS), "cached %"]
    headings += [f"{name} {p}" for name in ("TTFT", "TPOT", "end to end") for p in ("p50", "p99")]
    note = "Tokens are means, by the server's usage. Latencies in ms."
    return [
        section,
        Section(f"Turns of {number} agents", tables=[Table(headings, rows)], note=note),
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
