"""The readings of a coordinator that ``baton top`` takes, and the rates between two. Pure.

Counters become rates over the newest two readings. Latencies are quantiles of the histogram's
growth over all kept readings, so that they do not jump with each request.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_RATES = {
    "baton_prompt_tokens_total": "prompt",
    "baton_generation_tokens_total": "output",
    "baton_handoff_bytes_total": "moved",
}
_HANDOFF = "baton_handoff_seconds_bucket"
_TEMPERATURE = "baton_gpu_temperature_celsius"


@dataclass(frozen=True)
class Reading:
    """One reading at ``at_s`` of the monotonic clock. ``counts``: the counters of ``_RATES``.
    ``handoffs``: cumulative counts by upper bound in seconds. ``temperatures``: °C by instance.
    ``load``: the load of the last hour. ``requests``: the last ones; if there are none,
    ``requests_note`` says why."""

    at_s: float
    status: dict[str, Any]
    counts: dict[str, float] = field(default_factory=dict)
    handoffs: dict[float, float] = field(default_factory=dict)
    temperatures: dict[str, float] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    requests_note: str = ""


@dataclass(frozen=True)
class Rates:
    """Rates and latencies; None with too few readings, or without handoffs."""

    prompt_tok_s: float | None = None
    output_tok_s: float | None = None
    handoff_gb_s: float | None = None
    handoff_p50_s: float | None = None
    handoff_p99_s: float | None = None


def read(at_s: float, status: dict[str, Any], metrics: str) -> Reading:
    """Make a reading of a status and metrics. Raises ValueError for metrics in another format."""
    counts = dict.fromkeys(_RATES.values(), 0.0)
    handoffs: dict[float, float] = {}
    temperatures: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if name := _RATES.get(sample.name):
                counts[name] = sample.value
            elif sample.name == _HANDOFF and sample.labels["stage"] == "total":
                handoffs[float(sample.labels["le"])] = sample.value
            elif sample.name == _TEMPERATURE and "instance" in sample.labels:
                temperatures[sample.labels["instance"]] = sample.value
    return Reading(at_s, status, counts, handoffs, temperatures)


class Window:
    """The readings of the last ``length_s`` seconds, and always the newest two."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> Rates:
        """Keep ``reading`` and return the rates up to it. A counter that fell means that another
        coordinator answers: earlier readings are dropped then."""
        kept = self._readings
        if kept and any(reading.counts.get(n, 0.0) < c for n, c in kept[-1].counts.items()):
            kept.clear()
        kept.append(reading)
        while len(kept) > 2 and reading.at_s - kept[0].at_s > self._length_s:
            kept.popleft()
        if len(kept) < 2:
            return Rates()
        before, oldest = kept[-2], kept[0]
        took_s = reading.at_s - before.at_s
        rate = {n: (reading.counts[n] - before.counts[n]) / took_s for n in reading.counts}
        grown = {
            bound: count - oldest.handoffs.get(bound, 0.0)
            for bound, count in reading.handoffs.items()
        }
        return Rates(
            rate["prompt"], rate["output"], rate["moved"] / 1e9,
            quantile(grown, 0.5), quantile(grown, 0.99),
        )  # fmt: skip


def quantile(cumulative: dict[float, float], share: float) -> float | None:
    """A quantile as Prometheus' histogram_quantile gives it: linear within a bucket, and the
    highest finite bound for values above it. None if nothing was counted."""
    bounds = sorted(cumulative)
    total = cumulative[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank = share * total
    for low, high in pairwise([0.0, *bounds]):
        below = cumulative.get(low, 0.0)
        if cumulative[high] >= rank:
            if high == float("inf"):
                return low
            return low + (high - low) * (rank - below) / (cumulative[high] - below)
    raise AssertionError("the last bucket holds them all")
