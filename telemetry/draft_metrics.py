"""The Prometheus metrics of speculative decoding, over all workers.

The counters grow by the growth between heartbeats, so a worker's restart does not make them fall.
"""

from collections.abc import Sequence

from prometheus_client.registry import Collector

from telemetry.metric_factory import MetricFactory


class DraftMetrics:
    """Counters of drafts. ``position`` counts a sequence's drafts in a step from 0, as in vLLM."""

    def __init__(self, make: MetricFactory) -> None:
        self.steps = make.counter(
            "baton_sequence_steps", "Decode steps, one for each sequence in them."
        )
        self.drafted_steps = make.counter(
            "baton_sequence_steps_with_drafts", "Those steps that verified drafts."
        )
        self.verified = make.counter("baton_drafts_verified", "Drafts verified.")
        self.accepted = make.counter("baton_drafts_accepted", "Drafts accepted.")
        self.verified_at = make.counter(
            "baton_drafts_verified_per_position", "Drafts verified, by their position.", "position"
        )
        self.accepted_at = make.counter(
            "baton_drafts_accepted_per_position", "Drafts accepted, by their position.", "position"
        )

    def vllm(self) -> dict[str, Collector]:
        """The metrics that vLLM has too, by vLLM's names."""
        return {
            "vllm:spec_decode_num_drafts": self.drafted_steps,
            "vllm:spec_decode_num_draft_tokens": self.verified,
            "vllm:spec_decode_num_accepted_tokens": self.accepted,
            "vllm:spec_decode_num_accepted_tokens_per_pos": self.accepted_at,
        }

    def grow(self, num_steps: int, verified: Sequence[int], accepted: Sequence[int]) -> None:
        """Add steps of sequences, and drafts by position."""
        self.steps.inc(num_steps)
        self.drafted_steps.inc(verified[0] if verified else 0)
        self.verified.inc(sum(verified))
        self.accepted.inc(sum(accepted))
        for counter, counts in ((self.verified_at, verified), (self.accepted_at, accepted)):
            for position, num in enumerate(counts):
                counter.labels(str(position)).inc(num)
