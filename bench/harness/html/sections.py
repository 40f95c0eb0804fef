"""The sections of a report for each kind of result but throughput: figures, tables, facts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness.html.charts import Chart, Line

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
_FAILURE = ("label", "failure", "status", "received_tokens", "received_bytes", "after_ms", "detail")
_ROWS, _SERIES = 500, 20  # most rows of a table; a list of more numbers than this is drawn


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""

    def of_numbers(self, column: int) -> bool:
        """True if a value of the column is a number, so that its heading is aligned as numbers."""
        values = (row[column] for row in self.rows)
        return any(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


@dataclass(frozen=True)
class Figure:
    title: str
    chart: Chart
    note: str = ""


@dataclass
class Section:
    """A section with its parts in the order shown. ``terms``: names in ``TERMS``."""

    title: str
    cards: Sequence[tuple[str, Any]] = ()
    terms: Sequence[str] = ()
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def draw(self, title: str, chart: Chart, note: str = "") -> None:
        """Add a figure, if there is anything to draw."""
        if chart.kept:
            self.figures.append(Figure(title, chart, note))


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
    section.draw(title, Chart(attained, x, "%", x_ticks=rates, top=105))
    for name in ("TTFT", "TPOT"):
        key = SPREADS[name]
        lines = [
            Line(share, [(t["rate"], (t.get(key) or {}).get(share)) for t in trials])
            for share in ("p50", "p90", "p99")
        ]
        lines.append(Line("target", [(at, slo[key]) for at in rates], quiet=True))
        section.draw(name, Chart(lines, x, "ms", x_ticks=rates))
    columns = ("rate", "planned", "failed", "attained", "good_requests_per_s", "client_was_late")
    rows = [list(map(trial.get, columns)) for trial in trials]
    return [section, Section("Trials", tables=[Table(list(map(words, columns)), rows)])]


def generic(found: dict[str, Any]) -> list[Section]:
    """A result without a page of its own: figures as facts, lists as tables or charts."""
    plain, sections = Section("Results"), []
    for name, value in found["results"].items():
        title, is_list = words(name), isinstance(value, list) and value
        if name in ("gpu", "timeline"):
            continue
        if is_list and all(isinstance(item, dict) for item in value):
            columns = list(dict.fromkeys(key for item in value for key in item))
            rows = [list(map(item.get, columns)) for item in value[:_ROWS]]
            more = f"{len(value) - _ROWS} more" if len(value) > _ROWS else ""
            table = Table(list(map(words, columns)), rows)
            sections.append(Section(title, tables=[table], note=more))
        elif is_list and len(value) > _SERIES and all(isinstance(i, int | float) for i in value):
            sections.append(Section(title))
            sections[-1].draw(title, Chart([Line(title, list(enumerate(value)))], "", title))
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
            section.draw(title, Chart([Line(title, points)], "seconds", unit))
    return [section] if section.figures else []


def ramp(steps: Sequence[dict[str, Any]]) -> list[Section]:
    """A chart of the tokens a second that each concurrency gave; no section without steps."""
    section, levels = Section("Ramp"), [step["concurrency"] for step in steps]
    points = [(step["concurrency"], step["tokens_per_s"]) for step in steps]
    lines = [Line("output", points)] if len(points) > 1 else []
    section.draw("Output", Chart(lines, "requests at once", "tok/s", x_ticks=levels))
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
        section.draw(words(key), Chart(lines, "seconds", words(key)))
    return [section] if section.figures else []


def failures(listed: Sequence[dict[str, Any]]) -> Section:
    rows = [list(map(entry.get, _FAILURE)) for entry in listed]
    if not rows:
        return Section("Failures", note="No request failed.")
    return Section("Failures", tables=[Table(list(map(words, _FAILURE)), rows)])


def words(name: str) -> str:
    return name.replace("_", " ")
