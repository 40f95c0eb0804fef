"""Throughput runs, one or several: against concurrency, with latencies, and beside the references
where these are of the same model and size."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.html.elements import cards, figure, figures, section, table
from bench.html.svg import Axis, Line, chart
from bench.html.terms import terms

REFERENCES = Path(__file__).resolve().parent.parent / "references.json"
SPREADS = (("TTFT", "ttft_ms"), ("ITL", "itl_ms"), ("TPOT", "tpot_ms"), ("End to end", "e2e_ms"))


def references(documents: Sequence[dict[str, Any]], model: str | None) -> list[dict[str, Any]]:
    """Those to be compared with ``documents``: measured with the same model and the same lengths,
    else none. ``model`` says which one was served; None: the one that the server's name for it
    contains."""
    kept = json.loads(REFERENCES.read_text())
    lengths = kept["input_len"], kept["output_len"]
    for found in documents:
        served = str(model or found["server"].get("model") or "").lower()
        settings = found["settings"]
        same = (settings.get("input_len"), settings.get("output_len")) == lengths
        if not same or kept["model"].lower() not in served:
            return []
    listed: list[dict[str, Any]] = kept["references"]
    return listed


def headline(found: dict[str, Any]) -> str:
    """The best level's throughput, and the latency of a request that is alone, or nearly."""
    levels = [level for level in found["results"]["levels"] if level.get("completed")]
    if not levels:
        return ""
    best = max(levels, key=lambda level: float(level["total_tok_s"]))
    least = min(levels, key=lambda level: int(level["concurrency"]))
    shown = [
        (f"total tok/s, {best['concurrency']} at once", best["total_tok_s"]),
        (f"output tok/s, {best['concurrency']} at once", best["output_tok_s"]),
    ]
    for level in (least, best) if least is not best else (least,):
        for name, key in SPREADS[:3]:
            if spread := level.get(key):
                shown.append((f"ms {name} p50, {level['concurrency']} at once", spread["p50"]))
    shown.append(("requests failed", sum(level["failed"] for level in found["results"]["levels"])))
    return cards(shown)


def throughput(
    documents: Sequence[dict[str, Any]], names: Sequence[str], model: str | None = None
) -> str:
    """Several results share their charts; each has its own tables. ``model`` as in
    ``references``."""
    named = list(zip(names, documents, strict=True))
    beside = references(documents, model)
    parts = [section("Throughput", figures(_rates(named, beside), _output(named)))]
    for name, found in named:
        title = "Latency" if len(named) == 1 else f"Latency: {name}"
        drawn = _latencies(found)
        explained = terms(name for name, _ in SPREADS) if drawn else ""
        parts.append(section(title, explained, figures(*drawn)))
        parts.append(section("Levels" if len(named) == 1 else f"Levels: {name}", _levels(found)))
        parts.append(section("How it was counted", _counts(found), _sums(found)))
    return "".join(parts)


def _rates(named: Sequence[tuple[str, dict[str, Any]]], beside: Sequence[dict[str, Any]]) -> str:
    lines = [Line(name, _points(found, "total_tok_s")) for name, found in named]
    for reference in beside:
        points = [(float(at), value) for at, value in reference["total_tok_s"].items()]
        lines.append(Line(f"{reference['name']} ({reference['hardware']})", points, quiet=True))
    note = "Dashed: others with the same model and the same lengths (bench/references.json)."
    if not beside:
        note = "bench/references.json has no figures of this model with these lengths."
    return figure(
        "Total tokens a second (prompt + completion)", _drawn(lines, "tok/s", "log"), note
    )


def _output(named: Sequence[tuple[str, dict[str, Any]]]) -> str:
    lines = [Line(name, _points(found, "output_tok_s")) for name, found in named]
    return figure("Generated tokens a second", _drawn(lines, "tok/s"))


def _latencies(found: dict[str, Any]) -> list[str]:
    drawn = []
    for title, key in SPREADS:
        levels = [level for level in found["results"]["levels"] if level.get(key)]
        if not levels:
            continue
        lines = [
            Line(share, [(level["concurrency"], level[key][share]) for level in levels])
            for share in ("p50", "p90", "p95", "p99")
        ]
        drawn.append(figure(title, _drawn(lines, "ms")))
    return drawn


def _points(found: dict[str, Any], key: str) -> list[tuple[float, float | None]]:
    return [(level["concurrency"], level.get(key)) for level in found["results"]["levels"]]


def _drawn(lines: Sequence[Line], unit: str, scale: Any = "linear") -> str:
    ticks = sorted({at for line in lines for at, _ in line.points if at > 0})
    return chart(lines, Axis("requests at once", "log", ticks), Axis(unit, scale))


def _levels(found: dict[str, Any]) -> str:
    columns = ["at once", "requests", "failed", "wall s", "total tok/s", "output tok/s"]
    columns += [f"{name} {share}" for name, _ in SPREADS for share in ("p50", "p99")]
    rows = []
    for level in found["results"]["levels"]:
        row = [level.get(k) for k in ("concurrency", "requests", "failed", "wall_s")]
        row += [level.get("total_tok_s"), level.get("output_tok_s")]
        row += [(level.get(key) or {}).get(share) for _, key in SPREADS for share in ("p50", "p99")]
        rows.append(row)
    return table(columns, rows) + "<p class='note'>Latencies in ms.</p>"


def _counts(found: dict[str, Any]) -> str:
    names = (
        "prompt_tokens", "output_tokens", "usage", "retokenized", "by_ids", "by_text",
        "differ_from_usage", "prompts_differ_from_usage", "tokens_per_arrival",
    )  # fmt: skip
    rows = [
        [
            level["concurrency"],
            *[({**level, **level.get("counts", {})}).get(name) for name in names],
        ]
        for level in found["results"]["levels"]
    ]
    return table(["at once", *[name.replace("_", " ") for name in names]], rows)


def _sums(found: dict[str, Any]) -> str:
    rows = [
        [level["concurrency"], c["question"], c["expected"], c["answer"], c["passed"]]
        for level in found["results"]["levels"]
        for c in level["spot_checks"]
    ]
    return table(["at once", "sum", "expected", "the answer begins", "right"], rows) if rows else ""
