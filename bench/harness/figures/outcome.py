"""One request after its end, with its record, its token counts and its figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.client.record import Record
from bench.harness.figures.counting import Count
from bench.harness.figures.latency import tbt_s, tpot_s
from bench.measures import MS


@dataclass(frozen=True)
class Outcome:
    """One request. ``label``: its name in reports. ``prompt_len``: verified prompt tokens."""

    label: str
    record: Record
    count: Count
    prompt_len: int

    @property
    def ok(self) -> bool:
        return self.record.ok

    @property
    def num_tokens(self) -> int:
        return self.count.verified

    @property
    def tpot_s(self) -> float | None:
        return tpot_s(self.record, self.num_tokens)

    @property
    def tbt_s(self) -> float | None:
        return tbt_s(self.record.itl_s)

    def json(self, zero_s: float) -> dict[str, Any]:
        """The request as a result file has it; times in ms from ``zero_s`` (perf_counter)."""
        record = self.record
        usage = record.usage
        return {
            "label": self.label,
            "due_ms": MS * (record.due_at_s - zero_s),
            "sent_ms": _ms(record.sent_at_s, zero_s),
            "done_ms": MS * (record.done_at_s - zero_s),
            "ttft_ms": _ms(record.ttft_s),
            "tpot_ms": _ms(self.tpot_s),
            "e2e_ms": MS * record.e2e_s,
            "longest_gap_ms": _ms(max(record.itl_s, default=None)),
            "prompt_tokens": self.prompt_len,
            "prompt_tokens_usage": None if usage is None else usage.prompt_tokens,
            "cached_tokens": None if usage is None else usage.cached_tokens,
            "tokens": self.num_tokens,
            "tokens_by": self.count.by,
            "tokens_usage": self.count.said,
            "tokens_retokenized": self.count.retokenized,
            "token_ids": self.count.ids,
            "finish_reason": record.finish_reason,
            "failure": record.failure,
            "detail": record.detail,
            "remarks": list(record.remarks),
        }


def failures(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Every failed request, with what arrived of its answer."""
    return [
        {
            "label": outcome.label,
            "failure": outcome.record.failure,
            "status": outcome.record.status,
            "detail": outcome.record.detail,
            "received_tokens": outcome.num_tokens,
            "received_bytes": outcome.record.num_bytes,
            "after_ms": MS * outcome.record.e2e_s,
        }
        for outcome in outcomes
        if not outcome.ok
    ]


def by_failure(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How often each failure, most frequent first."""
    found: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.record.failure is not None:
            found[outcome.record.failure] = found.get(outcome.record.failure, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _ms(at_s: float | None, zero_s: float = 0.0) -> float | None:
    return None if at_s is None else MS * (at_s - zero_s)
