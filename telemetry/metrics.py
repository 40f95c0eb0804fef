"""Every Prometheus object of Baton: name, labels and buckets, in this one file; GPUs' figures are
in gpu_metrics.py.

Own metrics carry the prefix ``baton_``. The standard ones are exported a second time under
vLLM's names and labels (``vllm:…{model_name,engine}``), so that dashboards and autoscalers made
for vLLM keep working.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from telemetry.gpu_metrics import GpuMetrics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_REQUEST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_TTFT_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
_ITL_S = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 1, 2, 5)
_HANDOFF_S = (
    0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.008, 0.012,
    0.018, 0.025, 0.035, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10,
)  # fmt: skip
_GB_PER_S = (0.1, 0.5, 1, 2, 5, 10, 25, 50, 100, 150, 200, 250, 300, 325, 350, 375, 400, 450)
_LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_HTTP_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600)

# vLLM's metric name → the attribute of ``Metrics`` that it repeats.
_VLLM_ALIASES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "queued",
    "vllm:time_to_first_token_seconds": "ttft_s",
    "vllm:inter_token_latency_seconds": "itl_s",
    "vllm:request_time_per_output_token_seconds": "tpot_s",
    "vllm:e2e_request_latency_seconds": "e2e_s",
    "vllm:request_queue_time_seconds": "queue_s",
    "vllm:request_prefill_time_seconds": "prefill_s",
    "vllm:request_decode_time_seconds": "decode_s",
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "generation_tokens",
}
# Others' dashboards and autoscalers ask for these too; nothing here counts them.
_NO_PREFIX_CACHE = ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits")


class Metrics:
    """One process's metrics in a registry of their own; times are seconds.

    ``model_name`` is the label that the vLLM aliases carry.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = r = CollectorRegistry(auto_describe=False)

        self.requests = Counter(
            "baton_requests", "Requests by terminal state.", ["state", "reason"], registry=r
        )
        self.retries = Counter(
            "baton_retries", "Times a request was placed anew.", ["reason"], registry=r
        )
        self.queued = Gauge("baton_requests_queued", "Accepted, waiting for prefill.", registry=r)
        self.running = Gauge("baton_requests_running", "In prefill, handoff or decode.", registry=r)

        self.open_tokens = Gauge(
            "baton_open_tokens",
            "Tokens that open requests hold in the coordinator's memory, four bytes each.",
            registry=r,
        )

        self.queue_s = Histogram(
            "baton_queue_seconds", "Accepted to prefill start.", buckets=_REQUEST_S, registry=r
        )
        self.prefill_s = Histogram(
            "baton_prefill_seconds", "Prefill start to end.", buckets=_REQUEST_S, registry=r
        )
        self.handoff_s = Histogram(
            "baton_handoff_seconds",
            "Parts of a handoff, from the first token to the second.",
            ["stage"], buckets=_HANDOFF_S, registry=r,
        )  # fmt: skip
        self.handoff_gb_per_s = Histogram(
            "baton_handoff_gb_per_second", "Speed of the copy alone, 1e9 bytes a second.",
            buckets=_GB_PER_S, registry=r,
        )  # fmt: skip
        self.decode_s = Histogram(
            "baton_decode_seconds", "First to last token.", buckets=_REQUEST_S, registry=r
        )
        self.e2e_s = Histogram(
            "baton_e2e_seconds", "Accepted to last token.", buckets=_REQUEST_S, registry=r
        )
        self.ttft_s = Histogram(
            "baton_ttft_seconds", "Accepted to first token.", buckets=_TTFT_S, registry=r
        )
        self.itl_s = Histogram(
            "baton_itl_seconds", "Between two tokens of a request.", buckets=_ITL_S, registry=r
        )
        self.tpot_s = Histogram(
            "baton_tpot_seconds", "First to last token of a request, by token after the first.",
            buckets=_ITL_S, registry=r,
        )  # fmt: skip

        self.prompt_tokens = Counter("baton_prompt_tokens", "Prompt tokens.", registry=r)
        self.generation_tokens = Counter("baton_generation_tokens", "Output tokens.", registry=r)
        self.handoff_bytes = Counter("baton_handoff_bytes", "Bytes pulled.", registry=r)

        self.selftest_bytes_per_s = Gauge(
            "baton_handoff_selftest_bytes_per_second",
            "Speed of a pair's handoff path when it was tested; 0: it is broken and not used.",
            ["prefill", "decode"], registry=r,
        )  # fmt: skip

        self.http_responses = Counter(
            "baton_http_responses", "HTTP responses.", ["route", "method", "status"], registry=r
        )
        self.http_s = Histogram(
            "baton_http_seconds", "HTTP request to last byte.", ["route"],
            buckets=_HTTP_S, registry=r,
        )  # fmt: skip
        self.http_in_flight = Gauge("baton_http_in_flight", "HTTP requests open now.", registry=r)

        self.key_requests = Counter(
            "baton_key_requests", "POST requests with an API key.", ["key", "outcome"], registry=r
        )
        self.key_tokens = Counter(
            "baton_key_tokens", "Prompt and output tokens of an API key.", ["key"], registry=r
        )

        worker = ["instance", "role"]
        self.workers = Gauge("baton_workers", "Live workers.", ["role"], registry=r)
        self.pages = Gauge("baton_worker_pages", "Pages of a pool.", worker, registry=r)
        self.free_pages = Gauge("baton_worker_free_pages", "Free pages.", worker, registry=r)
        self.state_slots = Gauge("baton_worker_state_slots", "State slots.", worker, registry=r)
        self.free_state_slots = Gauge(
            "baton_worker_free_state_slots", "Free state slots.", worker, registry=r
        )
        self.worker_running = Gauge(
            "baton_worker_running", "Sequences running.", worker, registry=r
        )
        self.worker_waiting = Gauge(
            "baton_worker_waiting", "Sequences waiting.", worker, registry=r
        )
        self.worker_draining = Gauge(
            "baton_worker_draining", "1 while it takes no new work.", worker, registry=r
        )
        self.worker_stale = Gauge(
            "baton_worker_stale_dropped",
            "Orders about what was over, and offers that had changed hands, since it began.",
            worker, registry=r,
        )  # fmt: skip
        self.breaker_open = Gauge(
            "baton_worker_breaker_open",
            "1 while a worker gets no requests, but for probes, because of its faults.",
            worker, registry=r,
        )  # fmt: skip
        self.worker_faults = Counter(
            "baton_worker_faults", "Faults of requests that count against a worker.",
            ["role", "code"], registry=r,
        )  # fmt: skip
        self.worker_malformed = Gauge(
            "baton_worker_malformed_dropped",
            "Messages of the coordinator that it could not read, since it began.",
            worker, registry=r,
        )  # fmt: skip
        self.gpus = GpuMetrics()
        r.register(self.gpus)
        self.workers_lost = Counter(
            "baton_workers_lost", "Workers taken for dead.", ["role", "reason"], registry=r
        )

        self.ready = Gauge("baton_ready", "1 while work can be taken, as /ready says.", registry=r)
        self.redis_connected = Gauge("baton_redis_connected", "1 while connected.", registry=r)
        self.redis_writes_dropped = Counter(
            "baton_redis_writes_dropped", "Record writes given up.", registry=r
        )
        self.redis_keys_replaced = Counter(
            "baton_redis_keys_replaced",
            "Keys of Baton's that another program had replaced, written anew.",
            registry=r,
        )
        self.redis_records_unreadable = Counter(
            "baton_redis_records_unreadable",
            "Times a damaged record was left out of an answer.",
            registry=r,
        )
        self.stale_dropped = Counter(
            "baton_stale_messages_dropped",
            "Messages dropped: about what is over (worker), or not to be read (the error).",
            ["message"], registry=r,
        )  # fmt: skip
        self.http_evicted = Counter(
            "baton_http_connections_evicted",
            "Idle connections closed at the limit for others that came.", registry=r,
        )  # fmt: skip
        self.event_loop_lag_s = Histogram(
            "baton_event_loop_lag_seconds", "How late the event loop was.",
            buckets=_LAG_S, registry=r,
        )  # fmt: skip

        ProcessCollector(registry=r)  # memory, open files and CPU, under the usual names
        r.register(_VllmAliases(self, model_name))

    def set_worker(
        self, instance: str, role: str, *, num_pages: int, free_pages: int,
        num_state_slots: int, free_state_slots: int, running: int, waiting: int,
        draining: bool = False, stale_dropped: int = 0, breaker_open: bool = False,
        malformed_dropped: int = 0,
    ) -> None:  # fmt: skip
        """A live worker's pools and queues, as it last reported them."""
        self.pages.labels(instance, role).set(num_pages)
        self.free_pages.labels(instance, role).set(free_pages)
        self.state_slots.labels(instance, role).set(num_state_slots)
        self.free_state_slots.labels(instance, role).set(free_state_slots)
        self.worker_running.labels(instance, role).set(running)
        self.worker_waiting.labels(instance, role).set(waiting)
        self.worker_draining.labels(instance, role).set(draining)
        self.worker_stale.labels(instance, role).set(stale_dropped)
        self.breaker_open.labels(instance, role).set(breaker_open)
        self.worker_malformed.labels(instance, role).set(malformed_dropped)

    def forget_worker(self, instance: str, role: str) -> None:
        """Drop a worker's series; no-op when it has none."""
        for gauge in self._worker_gauges():
            gauge.remove_by_labels({"instance": instance, "role": role})
        self.gpus.forget(instance)
        if role in ("prefill", "decode"):
            self.selftest_bytes_per_s.remove_by_labels({role: instance})

    def render(self) -> bytes:
        """The text exposition; ``CONTENT_TYPE`` is its media type."""
        return generate_latest(self.registry)

    def _worker_gauges(self) -> tuple[Gauge, ...]:
        return (
            self.pages, self.free_pages, self.state_slots, self.free_state_slots,
            self.worker_running, self.worker_waiting, self.worker_draining,
            self.worker_stale, self.breaker_open, self.worker_malformed,
        )  # fmt: skip


class _VllmAliases(Collector):
    """Repeats the standard metrics under vLLM's names at every scrape; keeps no numbers."""

    def __init__(self, metrics: Metrics, model_name: str) -> None:
        self._metrics = metrics
        self._labels = {"model_name": model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        for alias, attribute in _VLLM_ALIASES.items():
            for source in getattr(self._metrics, attribute).collect():
                yield self._renamed(source, alias)
        yield self._kv_cache_usage()
        yield self._request_success()
        for name in _NO_PREFIX_CACHE:
            zero = Sample(f"{name}_total", self._labels, 0.0)
            yield _metric(name, "Always 0: there is no prefix cache.", "counter", [zero])

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
        total = sum(_decoding_values(self._metrics.pages))
        free = sum(_decoding_values(self._metrics.free_pages))
        name = "vllm:kv_cache_usage_perc"
        value = 1 - free / total if total else 0.0
        return _metric(name, "Used pages, 0 to 1.", "gauge", [Sample(name, self._labels, value)])

    def _request_success(self) -> Metric:
        samples = []
        for sample in _values(self._metrics.requests, "_total"):
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
    """One sample per label set: two sources with the same labels would break the scrape."""
    totals: dict[tuple[tuple[str, str], ...], Sample] = {}
    for sample in samples:
        key = tuple(sorted(sample.labels.items()))
        before = totals[key].value if key in totals else 0.0
        totals[key] = sample._replace(value=before + sample.value)
    return list(totals.values())
