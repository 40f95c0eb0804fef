"""The Prometheus metrics of what requests ask for and get, with vLLM's names and buckets."""

from prometheus_client.registry import Collector

from telemetry.metric_factory import MetricFactory

_TOKENS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000,
)  # fmt: skip
_NUMBERS = (1, 2, 5, 10, 20)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class RequestMetrics:
    """Sizes of requests, each choice by itself but for ``n``, and of the workers' decode steps;
    preemptions of requests."""

    def __init__(self, make: MetricFactory) -> None:
        self.prompt_tokens = make.histogram(
            "baton_request_prompt_tokens", "Tokens of a prompt.", _TOKENS
        )
        self.output_tokens = make.histogram(
            "baton_request_output_tokens", "Tokens of an output.", _TOKENS
        )
        self.max_tokens = make.histogram(
            "baton_request_max_tokens", "Limit of an output, in tokens.", _TOKENS
        )
        self.n = make.histogram("baton_request_n", "Choices of a request.", _NUMBERS)
        self.inference_s = make.histogram(
            "baton_inference_seconds", "From the start of prefill to the last token.", _SECONDS
        )
        self.step_tokens = make.histogram(
            "baton_step_tokens", "Tokens that a decode step of a worker gave.", _STEP_TOKENS
        )
        self.preemptions = make.counter("baton_preemptions", "Sequences ended for want of pages.")

    def vllm(self) -> dict[str, Collector]:
        """The metrics that vLLM has too, by vLLM's names."""
        return {
            "vllm:request_prompt_tokens": self.prompt_tokens,
            "vllm:request_generation_tokens": self.output_tokens,
            "vllm:request_params_max_tokens": self.max_tokens,
            "vllm:request_params_n": self.n,
            "vllm:request_inference_time_seconds": self.inference_s,
            "vllm:num_preemptions": self.preemptions,
            "vllm:iteration_tokens_total": self.step_tokens,
        }
