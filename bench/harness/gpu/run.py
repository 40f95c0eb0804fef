"""The course of the GPU benchmark: double the load until the GPUs are full, or try the
given levels, then hold it. A sampler
reads the GPUs throughout."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.asking import Ask
from bench.harness.client.exchange import Exchange
from bench.harness.client.reading import read
from bench.harness.client.record import Failure
from bench.harness.conduct import Session
from bench.harness.gpu.health import Limits
from bench.harness.gpu.report import GpuReport, Held, Span, Step
from bench.harness.gpu.sampler import Sampler
from bench.harness.gpu.settings import GpuSettings
from bench.harness.loops import OnEnd, closed_loop
from bench.harness.options import Target
from telemetry.nvml import local_gpus


async def gpu(settings: GpuSettings, target: Target, session: Session) -> GpuReport:
    """Keep every GPU full and watch it: speed, energy, heat, clocks, memory errors, Xids.

    The GPUs are those of this machine, so run it where the server runs. Exit status: 0 healthy (or
    no GPU), 1 a GPU is degraded or failing or requests failed, 2 nothing could be measured.
    """
    sampler = Sampler(local_gpus(), period_s=settings.period_s)
    for note in sampler.notes:
        session.progress.say(note)
    with sampler:
        held = await Course(settings, session).run()
    return GpuReport(held, sampler.observed, Limits())


@dataclass
class Course:
    """The ramp and the hold of one run. Raises CannotMeasure if the server stalls or only fails,
    and if the run is stopped during the ramp. A stopped hold counts as far as it went."""

    settings: GpuSettings
    session: Session

    def __post_init__(self) -> None:
        self._draw = random.Random(self.settings.seed)
        self._spans: list[Span] = []
        self._failures: list[str] = []

    async def run(self) -> Held:
        steps = [await self._step(level) for level in self.settings.levels] or await self._ramp()
        best = best_of(steps, self.settings.least_gain)
        hold_s = self.settings.hold_s
        self.session.progress.say(f"holding {best.concurrency} at once for {hold_s:.0f} s")
        begin_s, end_s = await self._hold(best.concurrency)
        return Held(tuple(steps), best, begin_s, end_s, self._spans, self._failures)

    async def _ramp(self) -> list[Step]:
        """Double the concurrency until that gains too little."""
        steps = [await self._step(self.settings.start)]
        while (best := best_of(steps, self.settings.least_gain)) is steps[-1]:
            doubled = min(2 * best.concurrency, self.settings.most)
            if doubled == best.concurrency:
                break
            steps.append(await self._step(doubled))
        return steps

    async def _step(self, concurrency: int) -> Step:
        """Output tokens per second at one concurrency, between ends of requests: from the end of
        the first round of requests to the end of the last but one, while all places are busy."""
        rounds, limit_s = self.settings.rounds, self.settings.step_limit_s
        asks = [self._ask() for _ in range(concurrency * (rounds + 1))]
        ended = 0

        def count(failed: bool) -> None:
            nonlocal ended
            ended += not failed

        try:
            async with asyncio.timeout(limit_s):
                spans = await self._send(asks, concurrency, count)
        except TimeoutError:
            what = f"{ended} of {len(asks)} requests were answered within {limit_s:.0f} s"
            raise CannotMeasure(what) from None
        if stopped := self.session.control.stopped:
            raise CannotMeasure(f"{stopped}{self._last_failure()}")
        counted = spans[concurrency : concurrency * rounds]
        if not counted:
            raise CannotMeasure(f"{len(spans)} of {len(asks)} requests{self._last_failure()}")
        took_s = counted[-1].end_s - spans[concurrency - 1].end_s
        rate = sum(span.num_output for span in counted) / took_s
        self.session.progress.say(f"{concurrency} at once: {rate:.1f} tokens/s")
        return Step(concurrency, rate)

    async def _hold(self, concurrency: int) -> tuple[float, float]:
        """Hold the load for ``hold_s`` after the first round of requests, or until the run is
        stopped. Returns (begin, end). Requests still open at the end are answered but not
        counted."""
        begin_s = 0.0
        ended = 0

        def count(failed: bool) -> None:
            nonlocal ended, begin_s
            ended += 1
            if ended == concurrency:
                begin_s = perf_counter()

        def asks() -> Iterator[Ask]:
            while not begin_s or perf_counter() < begin_s + self.settings.hold_s:
                if self.session.control.stopped:
                    return
                yield self._ask()

        await self._send(asks(), concurrency, count)
        if not begin_s:
            raise CannotMeasure(f"{self.session.control.stopped}{self._last_failure()}")
        return begin_s, min(perf_counter(), begin_s + self.settings.hold_s)

    async def _send(
        self, asks: "Sequence[Ask] | Iterator[Ask]", concurrency: int, on_end: OnEnd
    ) -> list[Span]:
        """Send ``asks``; the spans of answered requests, in order of their ends."""
        client, control = self.session.client, self.session.control
        exchanges = await closed_loop(client, asks, concurrency, control, on_end)
        spans = [span for each in exchanges if each is not None and (span := self._judge(each))]
        self._spans += spans
        return sorted(spans, key=lambda span: span.end_s)

    def _judge(self, exchange: Exchange) -> Span | None:
        record = read(exchange)
        got = record.usage and record.usage.completion_tokens
        if record.failure is Failure.CANCELLED:
            pass
        elif record.failure is not None:
            self._failures.append(f"{record.failure.value}: {record.detail}")
        elif record.usage is None:
            self._failures.append("an answer without usage: its tokens cannot be counted")
        elif got != self.settings.output_len:
            wanted = self.settings.output_len
            self._failures.append(f"{got} tokens, not {wanted}: is ignore_eos not known?")
        else:
            usage = record.usage
            return Span(
                record.due_at_s, record.done_at_s, usage.prompt_tokens, usage.completion_tokens
            )
        return None

    def _ask(self) -> Ask:
        return self.settings.ask(self.session.server.model, self._draw)

    def _last_failure(self) -> str:
        return f"; the last failure: {self._failures[-1]}" if self._failures else ""


def best_of(steps: Sequence[Step], least_gain: float) -> Step:
    """The step to hold: the last whose doubling gained at least ``least_gain``. A smaller gain is
    not worth the added latency."""
    best = steps[0]
    for step in steps[1:]:
        if step.tokens_per_s > best.tokens_per_s * (1 + least_gain):
            best = step
    return best
