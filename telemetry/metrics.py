"""The Prometheus metrics of Baton, with names, labels and buckets.

Metrics of drafts, GPUs, the prefix cache and spread steps are in files of their own.

Baton's names have the prefix ``baton_``. Metrics that vLLM has too are exported a second time under
vLLM's names (vllm_aliases.py).
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from telemetry.draft_metrics import DraftMetrics
from telemetry.gpu_metrics import GpuMetrics
from telemetry.prefix_metrics import PrefixMetrics
from telemetry.request_metrics import RequestMetrics
from telemetry.spread_metrics import SpreadMetrics
from telemetry.vllm_aliases import Pools, VllmAliases

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


class Metrics:
    """One process's metrics, in a registry of their own; times are seconds. ``model_name`` is a
    label of the metrics under vLLM's names."""

    def __init__(self, model_name: str) -> None:
        self.registry = r = CollectorRegistry(auto_describe=False)

        self.requests = Counter(
            "baton_requests", "Requests by terminal state.", ["state", "reason"], registry=r
        )
        self.moves = Counter(
            "baton_moves", "Requests that were to go on at another worker, by reason and outcome.",
            ["reason", "outcome"], registry=r,
        )  # fmt: skip
        self.move_s = Histogram(
            "baton_move_seconds",
            "From the order to move a request until another worker decodes it.",
            ["reason"], buckets=_HANDOFF_S, registry=r,
        )  # fmt: skip
        self.crossed_pools = Counter(
            "baton_crossed_pools", "Prompts computed by decode workers, and sequences decoded by "
            "prefill workers.", ["what"], registry=r,
        )  # fmt: skip
        self.role_changes = Counter(
            "baton_role_changes", "Workers that were assigned another role.", ["before", "role"],
            registry=r,
        )  # fmt: skip
        self.retries = Counter(
            "baton_retries", "Times a request was placed again.", ["reason"], registry=r
        )
        self.queued = Gauge(
            "baton_requests_queued",
            "Requests whose prompts wait, at the coordinator or at a worker.",
            registry=r,
        )
        self.running = Gauge(
            "baton_requests_running", "Requests in prefill, handoff or decode.", registry=r
        )

        self.open_tokens = Gauge(
            "baton_open_tokens",
            "Tokens that open requests hold in the coordinator's memory, four bytes each.",
            registry=r,
        )

        self.queue_s = Histogram(
            "baton_queue_seconds",
            "From acceptance to the start of prefill.",
            buckets=_REQUEST_S,
            registry=r,
        )
        self.prefill_s = Histogram(
            "baton_prefill_seconds",
            "From the start to the end of prefill.",
            buckets=_REQUEST_S,
            registry=r,
        )
        self.handoff_s = Histogram(
            "baton_handoff_seconds",
            "Parts of a handoff, from the first token to the second.",
            ["stage"], buckets=_HANDOFF_S, registry=r,
        )  # fmt: skip
        self.handoff_gb_per_s = Histogram(
            "baton_handoff_gb_per_second", "Speed of the copy alone, in 1e9 bytes a second.",
            buckets=_GB_PER_S, registry=r,
        )  # fmt: skip
        self.decode_s = Histogram(
            "baton_decode_seconds",
            "From the first to the last token.",
            buckets=_REQUEST_S,
            registry=r,
        )
        self.e2e_s = Histogram(
            "baton_e2e_seconds",
            "From acceptance to the last token.",
            buckets=_REQUEST_S,
            registry=r,
        )
        self.ttft_s = Histogram(
            "baton_ttft_seconds", "From acceptance to the first token.", buckets=_TTFT_S, registry=r
        )
        self.itl_s = Histogram(
            "baton_itl_seconds", "Between two tokens of a request.", buckets=_ITL_S, registry=r
        )
        self.tpot_s = Histogram(
            "baton_tpot_seconds", "Seconds per token after the first.",
            buckets=_ITL_S, registry=r,
        )  # fmt: skip

        self.prompt_tokens = Counter("baton_prompt_tokens", "Prompt tokens.", registry=r)
        self.generation_tokens = Counter("baton_generation_tokens", "Output tokens.", registry=r)
        self.handoff_bytes = Counter("baton_handoff_bytes", "Bytes pulled.", registry=r)

        self.selftest_bytes_per_s = Gauge(
            "baton_handoff_selftest_bytes_per_second",
            "Speed of a pair's self-test; 0: the test failed and the pair is not used.",
            ["prefill", "decode"], registry=r,
        )  # fmt: skip

        self.http_responses = Counter(
            "baton_http_responses", "HTTP responses.", ["route", "method", "status"], registry=r
        )
        self.http_s = Histogram(
            "baton_http_seconds", "From the HTTP request to its last byte.", ["route"],
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
            "baton_worker_draining", "1 while the worker takes no new work.", worker, registry=r
        )
        self.worker_stale = Gauge(
            "baton_worker_stale_dropped",
            "Stale orders and offers that the worker dropped since it started.",
            worker, registry=r,
        )  # fmt: skip
        self.breaker_open = Gauge(
            "baton_worker_breaker_open",
            "1 while a worker gets no requests but probes, because of its faults.",
            worker, registry=r,
        )  # fmt: skip
        self.worker_faults = Counter(
            "baton_worker_faults", "Faults of requests that count against a worker.",
            ["role", "code"], registry=r,
        )  # fmt: skip
        self.worker_malformed = Gauge(
            "baton_worker_malformed_dropped",
            "Malformed messages of the coordinator since the worker started.",
            worker, registry=r,
        )  # fmt: skip
        self.worker_drafts = Gauge(
            "baton_worker_drafts", "Drafts that a step makes for each sequence.", worker, registry=r
        )
        self.page_tokens = Gauge("baton_page_tokens", "Tokens of a page.", registry=r)
        self.per_request = RequestMetrics(r)
        self.drafts = DraftMetrics(r)
        self.spread = SpreadMetrics(r)
        self.prefixes = PrefixMetrics(r)
        self.gpus = GpuMetrics()
        r.register(self.gpus)
        self.workers_lost = Counter(
            "baton_workers_lost", "Workers considered dead.", ["role", "reason"], registry=r
        )

        self.ready = Gauge(
            "baton_ready", "1 while requests are accepted, as /ready says.", registry=r
        )
        self.redis_connected = Gauge(
            "baton_redis_connected", "1 while Redis is connected.", registry=r
        )
        self.redis_records_unwritten = Gauge(
            "baton_redis_records_unwritten",
            "Requests whose newest record Redis does not have yet.",
            registry=r,
        )
        self.redis_writes_dropped = Counter(
            "baton_redis_writes_dropped", "Records that were not written.", registry=r
        )
        self.redis_keys_replaced = Counter(
            "baton_redis_keys_replaced",
            "Keys that another program had replaced, and that were written again.",
            registry=r,
        )
        self.redis_records_unreadable = Counter(
            "baton_redis_records_unreadable",
            "Damaged records left out of answers.",
            registry=r,
        )
        self.stale_dropped = Counter(
            "baton_stale_messages_dropped",
            "Messages of workers that were dropped: stale, or malformed (by error).",
            ["message"], registry=r,
        )  # fmt: skip
        self.http_evicted = Counter(
            "baton_http_connections_evicted",
            "Idle connections closed for new ones at the limit.", registry=r,
        )  # fmt: skip
        self.event_loop_lag_s = Histogram(
            "baton_event_loop_lag_seconds", "How late the event loop was.",
            buckets=_LAG_S, registry=r,
        )  # fmt: skip

        ProcessCollector(registry=r)  # memory, open files and CPU, under the usual names
        same = {
            "vllm:num_requests_running": self.running,
            "vllm:num_requests_waiting": self.queued,
            "vllm:time_to_first_token_seconds": self.ttft_s,
            "vllm:inter_token_latency_seconds": self.itl_s,
            "vllm:request_time_per_output_token_seconds": self.tpot_s,
            "vllm:e2e_request_latency_seconds": self.e2e_s,
            "vllm:request_queue_time_seconds": self.queue_s,
            "vllm:request_prefill_time_seconds": self.prefill_s,
            "vllm:request_decode_time_seconds": self.decode_s,
            "vllm:prompt_tokens": self.prompt_tokens,
            "vllm:generation_tokens": self.generation_tokens,
            **self.per_request.vllm(),
            **self.drafts.vllm(),
            **self.prefixes.vllm(),
        }
        pools = Pools(self.pages, self.free_pages, self.page_tokens)
        r.register(VllmAliases(model_name, same, self.requests, pools))

    def set_worker(
        self, instance: str, role: str, *, num_pages: int, free_pages: int,
        num_state_slots: int, free_state_slots: int, running: int, waiting: int,
        draining: bool = False, stale_dropped: int = 0, breaker_open: bool = False,
        malformed_dropped: int = 0, drafts: int = 0,
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
        self.worker_drafts.labels(instance, role).set(drafts)

    def forget_worker(self, instance: str, role: str) -> None:
        """Remove a worker's series; no-op for one without any."""
        for gauge in self._worker_gauges():
            gauge.remove_by_labels({"instance": instance, "role": role})
        self.gpus.forget(instance)
        self.prefixes.forget(instance, role)
        self.spread.forget(instance, role)
        if role in ("prefill", "decode"):
            self.selftest_bytes_per_s.remove_by_labels({role: instance})

    def render(self) -> bytes:
        """The text exposition; ``CONTENT_TYPE`` is its media type."""
        return generate_latest(self.registry)

    def _worker_gauges(self) -> tuple[Gauge, ...]:
        return (
            self.pages, self.free_pages, self.state_slots, self.free_state_slots,
            self.worker_running, self.worker_waiting, self.worker_draining,
            self.worker_stale, self.breaker_open, self.worker_malformed, self.worker_drafts,
        )  # fmt: skip
