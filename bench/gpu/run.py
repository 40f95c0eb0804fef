"""The GPU benchmark's course: fill the GPUs, then hold, with readings all the while."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.client.client import Client
from bench.gpu.load import Answer, Load, RequestFailed, Span, StoppedWithin
from bench.gpu.plan import GpuPlan
from bench.gpu.ramp import Ramp, Step
from bench.gpu.sampler import Sampler


@dataclass(frozen=True)
class Held:
    """What was measured; the hold is from ``begin_s`` to ``end_s`` (``perf_counter`` seconds).

    ``spans`` are all requests that were answered, ``failures`` what the others said.
    """

    steps: tuple[Step, ...]
    best: Step
    begin_s: float
    end_s: float
    spans: tuple[Span, ...]
    failures: tuple[str, ...]


async def run(
    client: Client,
    model: str,
    plan: GpuPlan,
    sampler: Sampler,
    told: Callable[[str], None],
    stopped_within: StoppedWithin,
) -> Held:
    """Raises CannotMeasure when the server stalls or only fails, and when the run is stopped in
    the ramp; a hold that is stopped is as long as it was."""
    draw = random.Random(plan.seed)

    async def generate() -> Answer:
        record = await client.send(plan.ask(model, draw))
        if record.failure is not None:
            raise RequestFailed(f"{record.failure.value}: {record.detail}")
        if record.usage is None:
            raise RequestFailed("an answer without usage: its tokens cannot be counted")
        got = record.usage.completion_tokens
        if got != plan.output_len:
            raise RequestFailed(f"{got} tokens, not {plan.output_len}: is ignore_eos not known?")
        return Answer(record.usage.prompt_tokens, got)

    load = Load(generate)
    ramp = Ramp(plan.start, plan.most, plan.least_gain)
    with sampler:
        try:
            while ramp.concurrency is not None:
                concurrency = ramp.concurrency
                rate = await _step(load, concurrency, plan)
                told(f"{concurrency} at once: {rate:.1f} tokens/s")
                ramp.took(rate)
            await _settle(load, ramp, plan)
            told(f"holding {ramp.best.concurrency} at once for {plan.hold_s:.0f} s")
            begin_s = time.perf_counter()
            await load.hold(plan.hold_s, stopped_within)
            end_s = time.perf_counter()
        finally:
            await load.stop(plan.request_limit_s)
    return Held(
        tuple(ramp.steps), ramp.best, begin_s, end_s, tuple(load.spans), tuple(load.failures)
    )


async def _settle(load: Load, ramp: Ramp, plan: GpuPlan) -> None:
    """Return at the best concurrency, when no request is open that had to wait behind more."""
    best, last = ramp.best.concurrency, ramp.steps[-1].concurrency
    load.set_concurrency(best)
    if last > best:
        await load.until_answered(len(load.spans) + last + best, limit_s=plan.step_limit_s)


async def _step(load: Load, concurrency: int, plan: GpuPlan) -> float:
    """Output tokens per second at ``concurrency``. Measured between ends of requests: each place
    has answered its first one, which began while others were added, before the clock runs."""
    load.set_concurrency(concurrency)
    before = len(load.spans)
    await load.until_answered(before + concurrency, limit_s=plan.step_limit_s)
    settled, begin_s = len(load.spans), load.spans[-1].end_s
    more = concurrency * (plan.rounds - 1)
    await load.until_answered(settled + more, limit_s=plan.step_limit_s)
    counted = load.spans[settled:]
    return sum(span.answer.num_output for span in counted) / (counted[-1].end_s - begin_s)
