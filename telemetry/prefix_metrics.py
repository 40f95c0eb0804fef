"""The Prometheus metrics of the prefix cache: Baton's by worker, and vLLM's over all workers.

The counters grow by the growth between heartbeats. So the counters with vLLM's names, which have no
label for the worker, do not fall when a worker leaves.
"""

from collections.abc import Mapping

from prometheus_client.registry import Collector

from telemetry.metric_factory import MetricFactory

_REUSED = {"gpu": "reused_gpu", "host": "reused_host", "peer": "reused_peer"}
_MISSED = {"new": "missed_new", "no_state": "missed_no_state", "evicted": "missed_evicted"}
_EVICTED = {"gpu": "evicted", "host": "evicted_host"}
_KEPT = {"gpu": "num_kept", "host": "num_kept_host"}
_BYTES = {"gpu": "gpu_bytes", "host": "host_bytes"}


class PrefixMetrics:
    """Metrics by memory ``tier``: ``gpu`` (a CPU worker's own memory too), ``host``, or ``peer``,
    another worker. Counts have the names of PrefixCounts (transport/wire/reports.py)."""

    def __init__(self, make: MetricFactory) -> None:
        worker = "instance", "role"
        by_tier = *worker, "tier"
        self._queried = make.counter(
            "baton_prefix_cache_queried_tokens", "Tokens of prompts looked up.", *worker
        )
        self._reused = make.counter(
            "baton_prefix_cache_reused_tokens", "Looked-up tokens that were found.", *by_tier
        )
        self._missed = make.counter(
            "baton_prefix_cache_missed_prompts",
            "Prompts that computed more than 256 tokens, by reason: no earlier prompt began alike "
            "(new), no state was kept where they part (no_state), or it was evicted (evicted).",
            *worker,
            "reason",
        )
        self._evicted = make.counter("baton_prefix_cache_evictions", "Evicted prefixes.", *by_tier)
        self._kept = make.gauge("baton_prefix_cache_prefixes", "Prefixes kept.", *by_tier)
        self._pages = make.gauge(
            "baton_prefix_cache_pages", "Pages that only prefixes hold.", *worker
        )
        self._bytes = make.gauge(
            "baton_prefix_cache_bytes",
            "Memory that only prefixes hold: pages and state slots.",
            *by_tier,
        )
        self._size = make.gauge(
            "baton_prefix_cache_host_size_bytes", "Size of the host tier.", *worker
        )
        self._selftest = make.gauge(
            "baton_prefix_cache_selftest_bytes_per_second",
            "Speed of the self-test of two workers before one pulls prefixes that the other keeps; "
            "0: the test failed and none are pulled.",
            "keeper",
            "puller",
        )
        self._by_worker = (
            self._queried, self._reused, self._missed, self._evicted,
            self._kept, self._pages, self._bytes, self._size,
        )  # fmt: skip
        unregistered = MetricFactory(None)
        self._vllm = {
            name: unregistered.counter(name.removeprefix("vllm:"), text)
            for name, text in _VLLM.items()
        }

    def vllm(self) -> Mapping[str, Collector]:
        """vLLM's counters by their names. Its external cache is that of the host and of peers."""
        return self._vllm

    def grow(self, instance: str, role: str, grown: Mapping[str, int]) -> None:
        """Add tokens and prefixes that a worker looked up, found, missed and evicted."""
        worker = instance, role
        self._queried.labels(*worker).inc(grown["queried"])
        for counter, names in (
            (self._reused, _REUSED), (self._missed, _MISSED), (self._evicted, _EVICTED),
        ):  # fmt: skip
            for label, name in names.items():
                counter.labels(*worker, label).inc(grown[name])
        local = grown["reused_gpu"]
        external = grown["reused_host"] + grown["reused_peer"]
        for name, num in (
            ("vllm:prefix_cache_queries", grown["queried"]),
            ("vllm:prefix_cache_hits", local),
            ("vllm:external_prefix_cache_queries", max(0, grown["queried"] - local)),
            ("vllm:external_prefix_cache_hits", external),
            ("vllm:prompt_tokens_cached", local + external),
        ):
            self._vllm[name].inc(num)

    def report(self, instance: str, role: str, held: Mapping[str, int]) -> None:
        """Set the gauges of the prefixes that a worker keeps now; ``gpu_bytes`` too."""
        worker = instance, role
        for gauge, names in ((self._kept, _KEPT), (self._bytes, _BYTES)):
            for tier, name in names.items():
                gauge.labels(*worker, tier).set(held[name])
        self._pages.labels(*worker).set(held["pages_kept"])
        self._size.labels(*worker).set(held["host_size_bytes"])

    def tested(self, keeper: str, puller: str, bytes_per_s: float) -> None:
        """Set the speed of a pair's self-test; 0: it failed."""
        self._selftest.labels(keeper, puller).set(bytes_per_s)

    def forget(self, instance: str, role: str) -> None:
        """Remove a worker's series; no-op for one without any."""
        for metric in self._by_worker:
            metric.remove_by_labels({"instance": instance, "role": role})
        for side in ("keeper", "puller"):
            self._selftest.remove_by_labels({side: instance})


_VLLM = {
    "vllm:prefix_cache_queries": "Tokens of prompts looked up.",
    "vllm:prefix_cache_hits": "Tokens found at the worker that computed the rest.",
    "vllm:external_prefix_cache_queries": "Tokens of prompts looked up elsewhere.",
    "vllm:external_prefix_cache_hits": "Tokens found in host memory or at another worker.",
    "vllm:prompt_tokens_cached": "Tokens of prompts that were not computed.",
}
