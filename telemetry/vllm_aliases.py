"""Exports the standard metrics under vLLM's names and labels too (``vllm:…{model_name,engine}``).

So dashboards and autoscalers made for vLLM keep working.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import Counter, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample


class Pools(NamedTuple):
    """Gauges of the workers' pages, and of the tokens of a page."""

    pages: Gauge
    free_pages: Gauge
    page_tokens: Gauge


class VllmAliases(Collector):
    """Repeats metrics under vLLM's names at every scrape; keeps no numbers.

    ``same`` are the metrics that vLLM has too, by vLLM's name; the others are computed from the
    counter of ``requests`` by state and reason, and the gauges of workers' pages.
    """

    def __init__(
        self, model_name: str, same: Mapping[str, Collector], requests: Counter, pools: Pools
    ) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._same = same
        self._requests, self._pools = requests, pools

    def collect(self) -> Iterator[Metric]:
        for alias, metric in self._same.items():
            for source in metric.collect():
                yield self._renamed(source, alias)
        yield self._kv_cache_usage()
        yield self._cache_config()
        yield self._request_success()

    def _renamed(self, source: Metric, alias: str) -> Metric:
        samples = (
            Sample(
                alias + s.name.removeprefix(source.name), {**self._labels, **s.labels}, s.value,
                s.timestamp, s.exemplar,
            )
            for s in source.samples
        )  # fmt: skip
        return _metric(alias, source.documentation, source.type, samples)

    def _kv_cache_usage(self) -> Metric:
        """Used share of the pages of all workers that decode."""
        total = sum(_decoding_values(self._pools.pages))
        free = sum(_decoding_values(self._pools.free_pages))
        name = "vllm:kv_cache_usage_perc"
        value = 1 - free / total if total else 0.0
        return _metric(name, "Used pages, 0 to 1.", "gauge", [Sample(name, self._labels, value)])

    def _cache_config(self) -> Metric:
        """The pages of all workers that decode, as labels."""
        name = "vllm:cache_config_info"
        num_pages = sum(_decoding_values(self._pools.pages))
        page_tokens = sum(sample.value for sample in _values(self._pools.page_tokens))
        sizes = {"block_size": f"{page_tokens:.0f}", "num_gpu_blocks": f"{num_pages:.0f}"}
        return _metric(name, "Pages.", "gauge", [Sample(name, {**self._labels, **sizes}, 1)])

    def _request_success(self) -> Metric:
        samples = []
        for sample in _values(self._requests, "_total"):
            if sample.labels["state"] == "failed":
                continue
            finished = sample.labels["state"] == "finished"
            reason = sample.labels["reason"] if finished else "abort"
            labels = {**self._labels, "finished_reason": reason}
            samples.append(Sample("vllm:request_success_total", labels, sample.value))
        return _metric("vllm:request_success", "Requests by reason.", "counter", _summed(samples))


def _metric(name: str, documentation: str, kind: str, samples: Iterable[Sample]) -> Metric:
    metric = Metric(name, documentation, kind)
    metric.samples = list(samples)
    return metric


def _values(collector: Collector, suffix: str = "") -> Iterator[Sample]:
    for metric in collector.collect():
        yield from (s for s in metric.samples if s.name == metric.name + suffix)


def _decoding_values(gauge: Gauge) -> Iterator[float]:
    return (s.value for s in _values(gauge) if s.labels["role"] != "prefill")


def _summed(samples: Iterable[Sample]) -> list[Sample]:
    """One sample for each set of labels; Prometheus refuses a scrape with two."""
    totals: dict[tuple[tuple[str, str], ...], Sample] = {}
    for sample in samples:
        key = tuple(sorted(sample.labels.items()))
        before = totals[key].value if key in totals else 0.0
        totals[key] = sample._replace(value=before + sample.value)
    return list(totals.values())
