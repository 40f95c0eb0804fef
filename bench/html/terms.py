"""What the latencies of a report are, in a line each; docs/benchmarking.md has the formulas."""

from collections.abc import Iterable
from html import escape

TERMS = {
    "TTFT": "time to first token: from when a request was due to its first token.",
    "ITL": "inter-token latency: the time between two arrivals of tokens, over all gaps of all "
    "requests.",
    "TPOT": "time per output token: from a request's first token to its end, divided by its tokens "
    "after the first.",
    "TBT": "time between tokens: the mean of the longest tenth of a request's gaps.",
    "End to end": "from when a request was due to the end of its response.",
}


def terms(names: Iterable[str]) -> str:
    """A list of those of ``names`` that are explained here."""
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(TERMS[name])}</dd>" for name in names if name in TERMS
    )
    return f"<dl class='terms'>{rows}</dl>" if rows else ""
