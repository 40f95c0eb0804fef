"""The figures of a set of requests that ran together: a level, a rate, a trace."""

from collections.abc import Sequence
from typing import Any

from bench.harness.figures.latency import tokens_per_arrival
from bench.harness.figures.outcome import Outcome, by_failure, failures
from bench.harness.figures.timeline import timeline
from bench.measures import spread_ms

JUDGED_LEN, PROMPT_FACTOR = 256, 1.5
"""Mean length of prompts from which on the server's count of them is judged, and the factor by
which it may differ from ours."""


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Figures of requests. Rates are over the time from the first due to the last response's end.
    Only requests without a failure count tokens; the time of failed ones counts too."""
    assert outcomes, "figures of no requests"
    good = [outcome for outcome in outcomes if outcome.ok]
    records = [outcome.record for outcome in good]
    wall_s = wall(outcomes)
    prompt, output = sum(o.prompt_len for o in good), sum(o.num_tokens for o in good)
    said = [o.count.said for o in good if o.count.said is not None]
    usages = [o.record.usage.prompt_tokens for o in good if o.record.usage is not None]
    return {
        "requests": len(outcomes),
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "failures": by_failure(outcomes),
        "wall_s": wall_s,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "total_tok_s": (prompt + output) / wall_s,
        "output_tok_s": output / wall_s,
        "requests_per_s": len(good) / wall_s,
        "counts": {
            "by_ids": sum(o.count.by == "ids" for o in good),
            "by_text": sum(o.count.by == "text" for o in good),
            "usage": sum(said) if said else None,
            "without_usage": len(good) - len(said),
            "prompt_usage": sum(usages) if good and len(usages) == len(good) else None,
            "retokenized": sum(o.count.retokenized for o in good),
            "differ_from_usage": sum(
                o.count.said is not None and o.count.said != o.num_tokens for o in good
            ),
            "prompts_differ_from_usage": sum(
                o.record.usage is not None and o.record.usage.prompt_tokens != o.prompt_len
                for o in good
            ),
        },
        "tokens_per_arrival": tokens_per_arrival(
            [r for r in records if r.streamed], [o.num_tokens for o in good if o.record.streamed]
        ),
        "ttft_ms": spread_ms([r.ttft_s for r in records if r.ttft_s is not None]),
        "itl_ms": spread_ms([gap for r in records for gap in r.itl_s]),
        "tpot_ms": spread_ms([o.tpot_s for o in good if o.tpot_s is not None]),
        "tbt_ms": spread_ms([o.tbt_s for o in good if o.tbt_s is not None]),
        "e2e_ms": spread_ms([r.e2e_s for r in records]),
        "remarks": sorted({remark for r in records for remark in r.remarks}),
    }


def details(outcomes: Sequence[Outcome], zero_s: float) -> dict[str, Any]:
    """Every request of a run, for its result file; times from ``zero_s`` (perf_counter)."""
    return {
        "failures": failures(outcomes),
        "timeline": timeline(outcomes, zero_s),
        "requests": [outcome.json(zero_s) for outcome in outcomes],
    }


def problems(name: str, found: dict[str, Any], num_refused: int = 0) -> list[str]:
    """Why the run of a level or a rate is not good. ``found``: its ``summary``, with ``not_sent``.
    ``num_refused``: failures that count as none."""
    bad = []
    if failed := found["failed"] - num_refused:
        kinds = ", ".join(f"{number} {kind}" for kind, number in found["failures"].items())
        bad.append(f"{name}: {failed} of {found['requests']} failed ({kinds})")
    bad += [f"{name}: {each}" for each in _other_tokenizer(found)]
    if found["not_sent"]:
        bad.append(f"{name}: {found['not_sent']} never sent")
    return bad


def _other_tokenizer(found: dict[str, Any]) -> list[str]:
    """A problem if the server's usage has far more or fewer prompt tokens than were sent: it has
    another tokenizer, so it was given another load. ``found``: a ``summary``. Short prompts are not
    judged, as a chat template may add to them."""
    usage, sent = found.get("counts", {}).get("prompt_usage"), found.get("prompt_tokens")
    if not usage or not sent or sent / found["completed"] < JUDGED_LEN:
        return []
    if 1 / PROMPT_FACTOR <= usage / sent <= PROMPT_FACTOR:
        return []
    return [
        f"the server counts {usage / sent:.2g} times as many prompt tokens as were sent: its "
        f"tokenizer is another one"
    ]


def wall(outcomes: Sequence[Outcome]) -> float:
    """Seconds from the first time that a request was due to the end of the last response."""
    records = [outcome.record for outcome in outcomes]
    return max(1e-9, max(r.done_at_s for r in records) - min(r.due_at_s for r in records))
