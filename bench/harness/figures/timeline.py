"""Figures of each second of a run."""

import math
from collections.abc import Sequence
from typing import Any

from bench.harness.figures.outcome import Outcome
from bench.measures import MS, percentile


def timeline(outcomes: Sequence[Outcome], zero_s: float) -> list[dict[str, Any]]:
    """One entry a second from ``zero_s`` (perf_counter) on:

    ``arrivals``: requests due in it; ``running``: requests due and not ended at its end;
    ``tokens`` and ``ttft_p50_ms``: tokens, and first tokens, that came in it; ``failed``: requests
    that failed in it. A request's verified tokens are spread over its arrivals by their numbers of
    ids, or of characters if there are no ids.
    """
    if not outcomes:
        return []
    end_s = max(outcome.record.done_at_s for outcome in outcomes)
    count = max(1, math.ceil(end_s - zero_s))
    arrivals, ended, failed = [0] * count, [0] * count, [0] * count
    tokens = [0.0] * count
    ttfts: list[list[float]] = [[] for _ in range(count)]

    def at(time_s: float) -> int:
        return min(count - 1, max(0, int(time_s - zero_s)))

    for outcome in outcomes:
        record = outcome.record
        arrivals[at(record.due_at_s)] += 1
        ended[at(record.done_at_s)] += 1
        failed[at(record.done_at_s)] += not outcome.ok
        if record.ttft_s is not None:
            ttfts[at(record.arrivals[0].at_s)].append(record.ttft_s)
        for second, share in ((at(a), s) for a, s in _shares(outcome)):
            tokens[second] += share
    running, found = 0, []
    for second in range(count):
        running += arrivals[second] - ended[second]
        found.append(
            {
                "second": second,
                "arrivals": arrivals[second],
                "running": running,
                "tokens": tokens[second],
                "ttft_p50_ms": MS * percentile(ttfts[second], 0.5) if ttfts[second] else None,
                "failed": failed[second],
            }
        )
    return found


def _shares(outcome: Outcome) -> list[tuple[float, float]]:
    """(time, number of tokens) of each arrival of one request."""
    arrivals = outcome.record.arrivals
    by_ids = sum(arrival.num_ids for arrival in arrivals)
    weights = [a.num_ids if by_ids else a.num_chars for a in arrivals]
    total = sum(weights)
    if not total:
        return []
    return [
        (arrival.at_s, outcome.num_tokens * weight / total)
        for arrival, weight in zip(arrivals, weights, strict=True)
    ]
