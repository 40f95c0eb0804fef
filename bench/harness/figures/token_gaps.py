"""Gaps between the tokens of streams that run at the same time, and gaps while long prompts arrive
(bench/harness/interference.py)."""

from collections.abc import Sequence
from typing import Any

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.record import Record
from bench.measures import columns_ms

Span = tuple[float, float]
"""(begin, end) in seconds of one clock."""


class NotMeasured(CannotMeasure):
    """A request failed, or there was no time in which all streams ran."""


def figures(
    quiet: Sequence[Record], disturbed: Sequence[Record], arrivals: Sequence[Record]
) -> dict[str, Any]:
    """The gaps of streams alone and beside ``arrivals``, and the TTFT of ``arrivals``. Raises
    NotMeasured."""
    span = steady(disturbed)
    gaps = gaps_within(disturbed, span)
    waits = [(r.due_at_s, r.arrivals[0].at_s) for r in arrivals if r.arrivals]
    within = [(a, b) for a, b in waits if span[0] <= a and b <= span[1]]
    ttfts = [end - begin for begin, end in within]
    return {
        "quiet": pace(gaps_within(quiet, steady(quiet))),
        "disturbed": pace(gaps),
        "beside_a_prompt": pace(touching(gaps, waits)),
        "steady_s": span[1] - span[0],
        "arrivals": {
            "sent": len(arrivals),
            "within_steady": len(within),
            "failed": [f"{r.failure}: {r.detail}" for r in arrivals if not r.ok],
            **columns_ms("ttft", ttfts, "p50 p99"),
        },
    }


def steady(streams: Sequence[Record]) -> Span:
    """The time from the begin of the last stream to the end of the first. Raises NotMeasured."""
    begin = max(r.arrivals[0].at_s for r in streams)
    end = min(r.arrivals[-1].at_s for r in streams)
    if end <= begin:
        raise NotMeasured("no time in which all streams ran: they need more tokens")
    return begin, end


def gaps_within(streams: Sequence[Record], span: Span) -> list[Span]:
    """The gaps between two tokens of a stream that lie in ``span``."""
    pairs = [
        (a.at_s, b.at_s)
        for record in streams
        for a, b in zip(record.arrivals, record.arrivals[1:], strict=False)
    ]
    return [(a, b) for a, b in pairs if span[0] <= a and b <= span[1]]


def touching(gaps: Sequence[Span], spans: Sequence[Span]) -> list[Span]:
    """The gaps that share time with any of ``spans``."""
    return [(a, b) for a, b in gaps if any(a < end and begin < b for begin, end in spans)]


def pace(gaps: Sequence[Span]) -> dict[str, float | None]:
    """Percentiles of gaps, in milliseconds; only their number, 0, without any."""
    lengths = [b - a for a, b in gaps]
    if not lengths:
        return {"gaps": 0}
    return {"gaps": len(lengths), **columns_ms("itl", lengths, "p50 p90 p99 max")}
