"""Throughput: the same number of random prompts at each level of concurrency, strictly counted.

Life of a level: before the clock runs, its prompts are made (fresh, of exact length, some of them
sums) and the warm-ups are sent. Then a closed loop sends the prompts. After the clock has stopped,
the answers are read, counted and judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from bench.harness.client.record import Failure
from bench.harness.conduct import Session
from bench.harness.figures.latency import in_bursts
from bench.harness.figures.outcome import Outcome
from bench.harness.figures.summary import details, problems, summary
from bench.harness.loops import closed_loop
from bench.harness.options import CountedTarget
from bench.harness.server_info import find_tokens
from bench.harness.throughput_settings import ThroughputSettings
from bench.harness.workload.prepared import Maker, Prepared, outcomes
from bench.harness.workload.prompts import PromptsFailed
from bench.harness.workload.tokens import TokenizerMissing, Tokens

FEW_REQUESTS = 20
"""Below this number, a level's line shows how many requests its percentiles are of."""


@dataclass
class Throughput:
    """The result, which grows level by level; ``json`` is a whole result at any time."""

    settings: ThroughputSettings
    tokenizer: str
    zero_s: float = field(default_factory=perf_counter)
    levels: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        return {
            "seed": self.settings.seed,
            "tokenizer": self.tokenizer,
            "levels": self.levels,
            "wall_s": perf_counter() - self.zero_s,
            **details(self.outcomes, self.zero_s),
        }

    def headline(self) -> dict[str, Any]:
        return {
            "seed": self.settings.seed,
            "total_tok_s": {str(v["concurrency"]): v.get("total_tok_s") for v in self.levels},
            "failed": sum(level["failed"] for level in self.levels),
            "spot_checks": [c["passed"] for level in self.levels for c in level["spot_checks"]],
        }

    def problems(self) -> list[str]:
        """Failures of each level. Wrong sums are no problem: random weights cannot add."""
        found = []
        for level in self.levels:
            name = f"level {level['concurrency']}"
            found += problems(name, level)
            if level["warm_up_failures"]:
                found.append(f"{name}: warm-up failed: {level['warm_up_failures'][0]}")
        return found


async def throughput(
    settings: ThroughputSettings, target: CountedTarget, session: Session
) -> Throughput:
    """Random prompts of exact length in a closed loop, strictly counted, at each level.

    Exit status: 0, 1 when a request failed, 2 when nothing could be measured, 130 interrupted.
    """
    settings.check_fits(session.server)
    tokens = await find_tokens(session.aside, session.server, target.tokenizer, target.vocab_size)
    session.progress.say(f"seed {settings.seed}, {tokens.source}")
    return await measure(session, settings, tokens)


async def measure(session: Session, settings: ThroughputSettings, tokens: Tokens) -> Throughput:
    """Measure all levels, or as many as fit before the run is stopped. Raises PromptsFailed and
    TokenizerMissing if there is not even one."""
    client, control, progress = session.client, session.control, session.progress
    maker = Maker(session.server.model, tokens, settings)
    found = Throughput(settings, tokens.source)
    for concurrency in settings.levels:
        if control.stopped is not None:
            break
        try:
            warm, prepared = await maker.warm_ups(concurrency), await maker.level(concurrency)
        except (PromptsFailed, TokenizerMissing) as error:
            if not found.levels:
                raise
            control.stop(f"no prompts for level {concurrency}: {error}")
            break
        exchanges = await closed_loop(client, [w.ask for w in warm], concurrency, control)
        heated = await outcomes(warm, exchanges, tokens, settings.count_tolerance)
        bad = [o.record for o in heated if o.record.failure not in (None, Failure.MISCOUNT)]
        if warm and len(bad) == len(warm):
            why = f"{bad[0].failure}: {bad[0].detail}"
            control.stop(f"every warm-up of level {concurrency} failed: {why}")
        progress.begin(f"level {concurrency}", len(prepared))
        exchanges = await closed_loop(
            client, [p.ask for p in prepared], concurrency, control, progress.step
        )
        seen = await outcomes(prepared, exchanges, tokens, settings.count_tolerance)
        level = _figures(concurrency, prepared, seen)
        left_out = settings.spot_checks - settings.spot_checks_at(concurrency)
        level["spot_checks_left_out"] = left_out
        level["warm_up_failures"] = [f"{r.failure}: {r.detail}" for r in bad]
        found.levels.append(level)
        found.outcomes += seen
        progress.say(line_of(level))
    return found


def _figures(
    concurrency: int, prepared: Sequence[Prepared], seen: Sequence[Outcome]
) -> dict[str, Any]:
    answers = {outcome.label: outcome.record.text for outcome in seen}
    return {
        "concurrency": concurrency,
        **(summary(seen) if seen else {"requests": 0, "failed": 0}),
        "not_sent": len(prepared) - len(seen),
        "spot_checks": [
            {
                "question": item.check.question,
                "expected": item.check.expected,
                "answer": answers[item.label][:60],
                "passed": item.check.passes(answers[item.label]),
            }
            for item in prepared
            if item.check and item.label in answers
        ],
    }


def line_of(level: dict[str, Any]) -> str:
    """The line that the terminal shows after a level. ``level``: as the result file has it."""
    if not level["requests"]:
        return f"level {level['concurrency']}: nothing was sent"
    ttft = level["ttft_ms"]
    pace, shown = ("TPOT", "tpot_ms") if in_bursts(level) else ("ITL", "itl_ms")
    parts = [
        f"level {level['concurrency']}: {level['total_tok_s']:,.0f} tok/s",
        f"{level['output_tok_s']:,.0f} out",
        f"TTFT p50 {ttft['p50']:,.1f} ms" if ttft else "",
        f"{pace} p50 {level[shown]['p50']:,.2f} ms" if level[shown] else "",
        f"of {level['requests']} requests" if level["requests"] < FEW_REQUESTS else "",
        f"{level['wall_s']:,.1f} s",
        f"{level['failed']} failed" if level["failed"] else "",
    ]
    return ", ".join(part for part in parts if part)
