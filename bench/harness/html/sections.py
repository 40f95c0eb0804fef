"""The sections of a report for each kind of result: figures, tables, facts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.html.charts import Line, chart

REFERENCES = Path(__file__).resolve().parents[2] / "references.json"
SPREADS = {"TTFT": "ttft_ms", "ITL": "itl_ms", "TPOT": "tpot_ms", "End to end": "e2e_ms"}
TERMS = {
    "TTFT": "time to first token: from when a request was due to its first token.",
    "ITL": "inter-token latency: the time between two arrivals of tokens, over all gaps of all "
    "requests.",
    "TPOT": "time per output token: from a request's first token to its end, divided by its tokens "
    "after the first.",
    "TBT": "time between tokens: the mean of the longest tenth of a request's gaps.",
    "End to end": "from when a request was due to the end of its response.",
}
_TIMELINE = {
    "tokens": ("Tokens a second", "tok/s"),
    "running": ("Requests under way", "requests"),
    "arrivals": ("Arrivals", "requests"),
    "ttft_p50_ms": ("TTFT p50 of the first tokens that came", "ms"),
    "failed": ("Failed", "requests"),
}
_COUNTS = (
    "prompt_tokens", "output_tokens", "usage", "retokenized", "by_ids", "by_text",
    "differ_from_usage", "prompts_differ_from_usage", "tokens_per_arrival",
)  # fmt: skip
_FAILURE = ("label", "failure", "status", "received_tokens", "received_bytes", "after_ms", "detail")
_ROWS, _SERIES = 500, 20  # most rows of a table; a list of more numbers than this is drawn


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass
class Section:
    """A section with its parts in the order shown. ``figures``: (title, svg, note). ``terms``:
    names in ``TERMS``."""

    title: str
    cards: Sequence[tuple[str, Any]] = ()
    terms: Sequence[str] = ()
    figures: list[tuple[str, str, str]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def draw(self, title: str, svg: str, note: str = "") -> None:
        if svg:
            self.figures.append((title, svg, note))


def references(documents: Sequence[dict[str, Any]], model: str | None) -> list[dict[str, Any]]:
    """Published figures to compare ``documents`` with: those of the same model and lengths, else
    none. ``model``: the model that was served; None: it is found by the served name."""
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


def headline(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """The throughput of the best level, and the latencies at the best and at the lowest level."""
    levels = [level for level in found["results"]["levels"] if level.get("completed")]
    if not levels:
        return []
    best = max(levels, key=lambda level: float(level["total_tok_s"]))
    least = min(levels, key=lambda level: int(level["concurrency"]))
    shown = [
        (f"{kind} tok/s, {best['concurrency']} at once", best[f"{kind}_tok_s"])
        for kind in ("total", "output")
    ]
    for level in (least, best) if least is not best else (least,):
        shown += [
            (f"ms {name} p50, {level['concurrency']} at once", spread["p50"])
            for name in ("TTFT", "ITL", "TPOT")
            if (spread := level.get(SPREADS[name]))
        ]
    return [*shown, ("requests failed", sum(v["failed"] for v in found["results"]["levels"]))]


def throughput(
    documents: Sequence[dict[str, Any]], names: Sequence[str], model: str | None = None
) -> list[Section]:
    """Sections of throughput results: shared charts, and tables for each. ``model`` as in
    ``references``."""
    rates = Section("Throughput")
    beside = references(documents, model)
    lines = _lines(documents, names, "total_tok_s")
    for reference in beside:
        points = [(float(at), value) for at, value in reference["total_tok_s"].items()]
        lines.append(Line(f"{reference['name']} ({reference['hardware']})", points, quiet=True))
    note = "bench/references.json has no figures of this model with these lengths."
    if beside:
        note = "Dashed: others with the same model and the same lengths (bench/references.json)."
    title = "Total tokens a second (prompt + completion)"
    rates.draw(title, _by_level(lines, "tok/s", log_y=True), note)
    output = _lines(documents, names, "output_tok_s")
    rates.draw("Generated tokens a second", _by_level(output, "tok/s"))
    sections = [rates]
    for name, found in zip(names, documents, strict=True):
        suffix = "" if len(documents) == 1 else f": {name}"
        sections += _levels(found["results"]["levels"], suffix)
    return sections


def _lines(documents: Sequence[dict[str, Any]], names: Sequence[str], key: str) -> list[Line]:
    return [
        Line(name, [(v["concurrency"], v.get(key)) for v in found["results"]["levels"]])
        for name, found in zip(names, documents, strict=True)
    ]


def _by_level(lines: Sequence[Line], unit: str, *, log_y: bool = False) -> str:
    ticks = sorted({at for line in lines for at, _ in line.points if at > 0})
    return chart(lines, "requests at once", unit, x_ticks=ticks, log_y=log_y)


def _levels(levels: Sequence[dict[str, Any]], suffix: str) -> list[Section]:
    latency = Section(f"Latency{suffix}", terms=tuple(SPREADS))
    for title, key in SPREADS.items():
        known = [level for level in levels if level.get(key)]
        lines = [
            Line(share, [(level["concurrency"], level[key][share]) for level in known])
            for share in ("p50", "p90", "p95", "p99")
        ]
        latency.draw(title, _by_level(lines, "ms"))
    columns = ["concurrency", "requests", "failed", "wall_s", "total_tok_s", "output_tok_s"]
    shares = [(name, key, share) for name, key in SPREADS.items() for share in ("p50", "p99")]
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
    counted = Section("How it was counted")
    counted.tables.append(Table(["at once", *map(_words, _COUNTS)], counts))
    keys = ("question", "expected", "answer", "passed")
    sums = [[v["concurrency"], *map(c.get, keys)] for v in levels for c in v["spot_checks"]]
    if sums:
        headings_of_sums = ["at once", "sum", "expected", "the answer begins", "right"]
        counted.tables.append(Table(headings_of_sums, sums))
    whole = Section(f"Levels{suffix}", tables=[Table(headings, rows)], note="Latencies in ms.")
    return [latency, whole, counted]


def load(found: dict[str, Any]) -> list[Section]:
    run, slo = found["results"]["run"], found["settings"]["slo"]
    targets = f"TTFT {slo['ttft_ms']:g} ms, TPOT {slo['tpot_ms']:g} ms"
    cards = [
        ("requests a second, planned", run["rate"]),
        (f"% of requests within {targets}", 100 * run["attained"]),
        ("requests a second within the targets", run["good_requests_per_s"]),
        ("failed", run["failed"]),
        ("requests that the client sent more than 10 ms late", run["client_was_late"]),
    ]
    shares = ("mean", "p50", "p90", "p95", "p99", "max")
    spreads = ("ttft_ms", "itl_ms", "tpot_ms", "tbt_ms", "e2e_ms", "sent_late_ms")
    rows = [[key, *map((run.get(key) or {}).get, shares)] for key in spreads]
    terms = ("TTFT", "ITL", "TPOT", "TBT")
    return [Section("Load", cards, terms, tables=[Table(["", *shares], rows)])]


def sweep(found: dict[str, Any]) -> list[Section]:
    trials, slo = found["results"]["trials"], found["settings"]["slo"]
    goodput = found["results"]["goodput"].items()
    cards = [(f"goodput at {at}, requests/s", bounds["requests_per_s"]) for at, bounds in goodput]
    section = Section("Goodput", cards, ("TTFT", "TPOT"))
    rates = [trial["rate"] for trial in trials]
    attained = [Line("attained", [(t["rate"], 100 * t["attained"]) for t in trials])]
    attained += [
        Line(f"{share} %", [(at, share) for at in rates], quiet=True) for share in (90, 99)
    ]
    x = "requests a second"
    title = "Requests within both targets"
    section.draw(title, chart(attained, x, "%", x_ticks=rates, top=105))
    for name in ("TTFT", "TPOT"):
        key = SPREADS[name]
        lines = [
            Line(share, [(t["rate"], (t.get(key) or {}).get(share)) for t in trials])
            for share in ("p50", "p90", "p99")
        ]
        lines.append(Line("target", [(at, slo[key]) for at in rates], quiet=True))
        section.draw(name, chart(lines, x, "ms", x_ticks=rates))
    columns = ("rate", "planned", "failed", "attained", "good_requests_per_s", "client_was_late")
    rows = [list(map(trial.get, columns)) for trial in trials]
    return [section, Section("Trials", tables=[Table(list(map(_words, columns)), rows)])]


def generic(found: dict[str, Any]) -> list[Section]:
    """A result without a page of its own: figures as facts, lists as tables or charts."""
    plain, sections = Section("Results"), []
    for name, value in found["results"].items():
        title, is_list = _words(name), isinstance(value, list) and value
        if name in ("gpu", "timeline"):
            continue
        if is_list and all(isinstance(item, dict) for item in value):
            columns = list(dict.fromkeys(key for item in value for key in item))
            rows = [list(map(item.get, columns)) for item in value[:_ROWS]]
            more = f"{len(value) - _ROWS} more" if len(value) > _ROWS else ""
            table = Table(list(map(_words, columns)), rows)
            sections.append(Section(title, tables=[table], note=more))
        elif is_list and len(value) > _SERIES and all(isinstance(i, int | float) for i in value):
            sections.append(Section(title))
            sections[-1].draw(title, chart([Line(title, list(enumerate(value)))], "", title))
        elif isinstance(value, dict):
            sections.append(Section(title, facts=value))
        else:
            plain.facts[name] = value
    return [*([plain] if plain.facts else []), *sections]


def timeline(seconds: Sequence[dict[str, Any]]) -> list[Section]:
    """Charts of figures/timeline.py; no section without values."""
    section = Section("Second by second")
    for key, (title, unit) in _TIMELINE.items():
        points = [(second["second"], second[key]) for second in seconds]
        if any(value for _, value in points):
            section.draw(title, chart([Line(title, points)], "seconds", unit))
    return [section] if section.figures else []


def gpus(samples: Sequence[dict[str, Any]]) -> list[Section]:
    """A chart for each number in the samples, with a line for each GPU. A sample is ``{"at_s": 1.0,
    "gpus": [{"index": 0, "power_w": 410.0, ...}]}``."""
    section = Section("GPU health")
    for key in dict.fromkeys(k for s in samples for gpu in s["gpus"] for k in gpu):
        points: dict[int, list[tuple[float, float | None]]] = {}
        for sample in samples:
            for gpu in sample["gpus"]:
                if key != "index" and isinstance(gpu.get(key), int | float):
                    points.setdefault(gpu["index"], []).append((sample["at_s"], float(gpu[key])))
        lines = [Line(f"GPU {index}", of_one) for index, of_one in sorted(points.items())]
        section.draw(_words(key), chart(lines, "seconds", _words(key)))
    return [section] if section.figures else []


def failures(listed: Sequence[dict[str, Any]]) -> Section:
    rows = [list(map(entry.get, _FAILURE)) for entry in listed]
    if not rows:
        return Section("Failures", note="No request failed.")
    return Section("Failures", tables=[Table(list(map(_words, _FAILURE)), rows)])


def _words(name: str) -> str:
    return name.replace("_", " ")
