"""The Prometheus metrics of Baton: the lives of requests here, others in ``*_metrics.py``.

Baton's names have the prefix ``baton_``. Metrics that vLLM has too are exported a second time under
vLLM's names (vllm_aliases.py).
"""

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from telemetry.draft_metrics import DraftMetrics
from telemetry.gpu_metrics import GpuMetrics
from telemetry.metric_factory import MetricFactory
from telemetry.prefix_metrics import PrefixMetrics
from telemetry.request_metrics import RequestMetrics
from telemetry.service_metrics import HttpMetrics, RedisMetrics
from telemetry.spread_metrics import SpreadMetrics
from telemetry.vllm_aliases import Pools, VllmAliases
from telemetry.worker_metrics import WorkerMetrics

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


class Metrics:
    """One process's metrics, in a registry of their own; times are seconds. ``model_name`` is a
    label of the metrics under vLLM's names."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        make = MetricFactory(self.registry)

        self.ready = make.gauge("baton_ready", "1 while requests are accepted, as /ready says.")
        self.requests = make.counter(
            "baton_requests", "Requests by terminal state.", "state", "reason"
        )
        self.queued = make.gauge(
            "baton_requests_queued",
            "Requests whose prompts wait, at the coordinator or at a worker.",
        )
        self.running = make.gauge(
            "baton_requests_running", "Requests in prefill, handoff or decode."
        )
        self.open_tokens = make.gauge(
            "baton_open_tokens",
            "Tokens that open requests hold in the coordinator's memory, four bytes each.",
        )
        self.prompt_tokens = make.counter("baton_prompt_tokens", "Prompt tokens.")
        self.generation_tokens = make.counter("baton_generation_tokens", "Output tokens.")
        self.page_tokens = make.gauge("baton_page_tokens", "Tokens of a page.")

        self.retries = make.counter("baton_retries", "Times a request was placed again.", "reason")
        self.moves = make.counter(
            "baton_moves",
            "Requests that were to go on at another worker, by reason and outcome.",
            "reason",
            "outcome",
        )
        self.move_s = make.histogram(
            "baton_move_seconds",
            "From the order to move a request until another worker decodes it.",
            _HANDOFF_S,
            "reason",
        )
        self.crossed_pools = make.counter(
            "baton_crossed_pools",
            "Prompts computed by decode workers, and sequences decoded by prefill workers.",
            "what",
        )
        self.role_changes = make.counter(
            "baton_role_changes", "Workers that were assigned another role.", "before", "role"
        )
        self.stale_dropped = make.counter(
            "baton_stale_messages_dropped",
            "Messages of workers that were dropped: stale, or malformed (by error).",
            "message",
        )
        self.event_loop_lag_s = make.histogram(
            "baton_event_loop_lag_seconds", "How late the event loop was.", _LAG_S
        )

        self.queue_s = make.histogram(
            "baton_queue_seconds", "From acceptance to the start of prefill.", _REQUEST_S
        )
        self.prefill_s = make.histogram(
            "baton_prefill_seconds", "From the start to the end of prefill.", _REQUEST_S
        )
        self.handoff_s = make.histogram(
            "baton_handoff_seconds",
            "Parts of a handoff, from the first token to the second.",
            _HANDOFF_S,
            "stage",
        )
        self.handoff_gb_per_s = make.histogram(
            "baton_handoff_gb_per_second",
            "Speed of the copy alone, in 1e9 bytes a second.",
            _GB_PER_S,
        )
        self.handoff_bytes = make.counter("baton_handoff_bytes", "Bytes pulled.")
        self.decode_s = make.histogram(
            "baton_decode_seconds", "From the first to the last token.", _REQUEST_S
        )
        self.e2e_s = make.histogram(
            "baton_e2e_seconds", "From acceptance to the last token.", _REQUEST_S
        )
        self.ttft_s = make.histogram(
            "baton_ttft_seconds", "From acceptance to the first token.", _TTFT_S
        )
        self.itl_s = make.histogram("baton_itl_seconds", "Between two tokens of a request.", _ITL_S)
        self.tpot_s = make.histogram(
            "baton_tpot_seconds", "Seconds per token after the first.", _ITL_S
        )

        self.per_request = RequestMetrics(make)
        self.workers = WorkerMetrics(make)
        self.drafts = DraftMetrics(make)
        self.spread = SpreadMetrics(make)
        self.prefixes = PrefixMetrics(make)
        self.http = HttpMetrics(make)
        self.redis = RedisMetrics(make)
        self.gpus = GpuMetrics()
        self.registry.register(self.gpus)
        ProcessCollector(registry=self.registry)  # memory, open files, CPU, by the usual names
        pools = Pools(self.workers.pages, self.workers.free_pages, self.page_tokens)
        self.registry.register(VllmAliases(model_name, self._vllm(), self.requests, pools))

    def forget_worker(self, instance: str, role: str) -> None:
        """Remove a worker's series; no-op for one without any."""
        self.workers.forget(instance, role)
        self.gpus.forget(instance)
        self.prefixes.forget(instance, role)
        self.spread.forget(instance, role)

    def render(self) -> bytes:
        """The text exposition; ``CONTENT_TYPE`` is its media type."""
        return generate_latest(self.registry)

    def _vllm(self) -> dict[str, Collector]:
        """The metrics that vLLM has too, by vLLM's names."""
        return {
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
