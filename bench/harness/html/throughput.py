"""The sections of a report about throughput runs: figures that they share, ratios, tables."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.figures.latency import in_bursts
from bench.harness.html.charts import Chart, Line
from bench.harness.html.runs import Run, ratio
from bench.harness.html.sections import SPREADS, Section, Table, words
from bench.harness.html.trade import draw_trade

REFERENCES = Path(__file__).resolve().parents[2] / "references.json"
SHARES = ("p50", "p90", "p95", "p99")
_COUNTS = (
    "prompt_tokens", "output_tokens", "usage", "retokenized", "by_ids", "by_text",
    "differ_from_usage", "prompts_differ_from_usage", "tokens_per_arrival",
)  # fmt: skip
_COMPARED = (
    ("total tok/s", "total_tok_s", ""), ("output tok/s", "output_tok_s", ""),
    ("TTFT p50", "ttft_ms", "p50"), ("TTFT p99", "ttft_ms", "p99"),
    ("TPOT p50", "tpot_ms", "p50"), ("TPOT p99", "tpot_ms", "p99"),
)  # fmt: skip
_ROOM = 1.2


def references(runs: Sequence[Run], model: str | None) -> list[dict[str, Any]]:
    """Published figures to compare ``runs`` with: those of the same model and lengths, else none.
    ``model``: the model that was served; None: it is found by the served name."""
    kept = json.loads(REFERENCES.read_text())
    lengths = kept["input_len"], kept["output_len"]
    for found in (each for run in runs for each in run.documents):
        served = str(model or found["server"].get("model") or "").lower()
        settings = found["settings"]
        same = (settings.get("input_len"), settings.get("output_len")) == lengths
        if not same or kept["model"].lower() not in served:
            return []
    listed: list[dict[str, Any]] = kept["references"]
    return listed


def headline(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """The throughput of the best level, and the latencies at the best and at the lowest level.
    Where tokens arrive in bursts, TPOT stands without ITL, which is then the gap within one."""
    levels = [level for level in found["results"]["levels"] if level.get("completed")]
    if not levels:
        return []
    best = max(levels, key=lambda level: float(level["total_tok_s"]))
    least = min(levels, key=lambda level: int(level["concurrency"]))
    shown = [
        (f"{kind} tok/s, {best['concurrency']} at once", best[f"{kind}_tok_s"])
        for kind in ("total", "output")
    ]
    latencies = ("TPOT", "TTFT") if any(map(in_bursts, levels)) else ("TTFT", "ITL", "TPOT")
    for level in (least, best) if least is not best else (least,):
        shown += [
            (f"ms {name} p50, {level['concurrency']} at once", spread["p50"])
            for name in latencies
            if (spread := level.get(SPREADS[name]))
        ]
    return [*shown, ("requests failed", sum(v["failed"] for v in found["results"]["levels"]))]


def throughput(runs: Sequence[Run], model: str | None = None) -> list[Section]:
    """Figures that all runs share, their ratios to the first, and tables for each result.
    ``model`` as in ``references``."""
    rates = Section("Throughput")
    beside = references(runs, model)
    lines = _lines(runs, "total_tok_s")
    for reference in beside:
        points = [(float(at), value) for at, value in reference["total_tok_s"].items()]
        lines.append(Line(f"{reference['name']} ({reference['hardware']})", points, quiet=True))
    note = "bench/references.json has no figures of this model with these lengths."
    if beside:
        note = (
            "Dashed: others with the same model and the same lengths, of which no raw output is "
            "kept (bench/references.json says how they were measured, and when)."
        )
    title = "Total tokens a second (prompt + completion)"
    output = _lines(runs, "output_tok_s")
    limits = _limits([*lines, *output])
    rates.draw(title, _by_level(lines, "tok/s", log_y=True, limits=limits), note)
    generated = _by_level(output, "tok/s", log_y=True, limits=limits)
    rates.draw("Generated tokens a second", generated)
    draw_trade(rates, runs)
    sections = [rates, _latency(runs)]
    if len(runs) > 1:
        sections.append(_ratios(runs))
    for run in runs:
        for number, found in enumerate(run.documents, 1):
            again = f", {number}" if len(run.documents) > 1 else ""
            suffix = "" if len(runs) == 1 and not again else f": {run.name}{again}"
            sections += _tables(found["results"]["levels"], suffix)
    return sections


def _latency(runs: Sequence[Run]) -> Section:
    """Each latency of all runs in one figure: p50 and p99, or more shares of a single run."""
    section = Section("Latency", terms=tuple(SPREADS))
    for title, key in SPREADS.items():
        if len(runs) == 1:
            lines = [_line(runs[0], key, share, name=share) for share in SHARES]
        else:
            lines = [
                _line(run, key, share, name=f"{run.name} {share}", colour=n, quiet=share == "p99")
                for n, run in enumerate(runs)
                for share in ("p50", "p99")
            ]
        section.draw(title, _by_level(lines, "ms"))
    return section


def _ratios(runs: Sequence[Run]) -> Section:
    """Ratios to the first run, with the lowest and the highest of any two repetitions."""
    first, *others = runs
    headings = ["at once", *(name for name, _, _ in _COMPARED)]
    tables = []
    for run in others:
        rows = [
            [
                level,
                *(
                    ratio(first.values(level, key, share), run.values(level, key, share))
                    for _, key, share in _COMPARED
                ),
            ]
            for level in run.levels
        ]
        tables.append(Table(headings, rows, title=f"{run.name} / {first.name}"))
    repeated = max(len(run.documents) for run in runs) > 1
    note = "Medians of the repetitions; in brackets the lowest and the highest ratio of any two."
    once = "Each run was measured once: give a folder of its repetitions to see their spread."
    return Section("Ratios", tables=tables, note=note if repeated else once)


def _lines(runs: Sequence[Run], key: str) -> list[Line]:
    return [_line(run, key, name=run.name) for run in runs]


def _line(
    run: Run, key: str, share: str = "", *, name: str, colour: int | None = None,
    quiet: bool = False,
) -> Line:  # fmt: skip
    """A figure of a run over its levels, with a band if it was repeated."""
    values = {level: run.values(level, key, share) for level in run.levels}
    band = [(at, min(each), max(each)) for at, each in values.items() if len(each) > 1]
    points = [(at, run.median(at, key, share)) for at in values]
    return Line(name, points, quiet=quiet, band=band, colour=colour)


def _by_level(lines: Sequence[Line], unit: str, **scale: Any) -> Chart:
    ticks = sorted({at for line in lines for at, _ in line.points if at > 0})
    return Chart(lines, "requests at once", unit, x_ticks=ticks, **scale)


def _limits(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Ends of a logarithmic axis that has room for all lines; None without any value above 0."""
    values = [y for line in lines for _, y in line.points if y]
    return (min(values) / _ROOM, max(values) * _ROOM) if values else None


def _tables(levels: Sequence[dict[str, Any]], suffix: str) -> list[Section]:
    columns = ["concurrency", "requests", "failed", "wall_s", "total_tok_s", "output_tok_s"]
    shares = [(name, key, share) for name, key in SPREADS.items() for share in SHARES]
    headings = ["at once", "requests", "failed", "wall s", "total tok/s", "output tok/s"]
    headings += [f"{name} {share}" for name, _, share in shares]
    rows = [
        [*map(level.get, columns), *[(level.get(key) or {}).get(share) for _, key, share in shares]]
        for level in levels
    ]
    counts = [
        [level["concurrency"], *map({**level, **level.get("counts", {})}.get, _COUNTS)]
        for level in levels
    ]
    counted = Section(f"How it was counted{suffix}")
    counted.tables.append(Table(["at once", *map(words, _COUNTS)], counts))
    keys = ("question", "expected", "answer", "passed")
    sums = [[v["concurrency"], *map(c.get, keys)] for v in levels for c in v["spot_checks"]]
    if sums:
        headings_of_sums = ["at once", "sum", "expected", "the answer begins", "right"]
        counted.tables.append(Table(headings_of_sums, sums))
    whole = Section(f"Levels{suffix}", tables=[Table(headings, rows)], note="Latencies in ms.")
    return [whole, counted]
