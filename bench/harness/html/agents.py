"""Report sections of a load of agents: cached share and time to first token of each turn."""

from typing import Any

from bench.harness.html.charts import Chart, Line
from bench.harness.html.sections import Section, Table

_SHARES = ("p50", "p90", "p99")
_MEANS = ("turn", "requests", "failed", "prompt_tokens", "cached_tokens")


def agents(found: dict[str, Any]) -> list[Section]:
    run, turns = found["results"]["run"], found["results"]["by_turn"]
    cards = [
        ("agents", run["agents"]),
        ("% of prompt tokens cached, from turn 2 on", _percent(run["hit_rate_later"])),
        ("% in the turn with the least, from turn 2 on", _percent(run["lowest_hit_rate_later"])),
        ("TTFT p50 of the last turn / of turn 2", run["ttft_growth"]),
        ("total tok/s", run["total_tok_s"]),
        ("failed", run["failed"]),
        ("turns never sent", run["not_sent"]),
    ]
    section = Section("Agents", cards, ("TTFT", "TPOT", "End to end"))
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
    return [section, Section("Turns", tables=[Table(headings, rows)], note=note)]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
