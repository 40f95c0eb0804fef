"""Load: an open loop of Poisson or trace arrivals, judged by latency targets; or agents.

One run is one rate. A request is due at the time that the plan gives, whatever the server does.
Every latency counts from then, and the result says how late the client itself was.
"""

import math
import random
from collections.abc import Sequence

from bench.harness.agents.run import agents
from bench.harness.conduct import Finding, Session
from bench.harness.load_result import Load, Run, line
from bench.harness.load_settings import LoadSettings
from bench.harness.loops import open_loop, warm_up
from bench.harness.options import CountedTarget
from bench.harness.server_info import find_tokens
from bench.harness.sweep import sweep
from bench.harness.workload.plan import Planned, clipped, mean_rate, paced, poisson
from bench.harness.workload.plan_prompts import PlanPrompts
from bench.harness.workload.prepared import outcomes
from bench.harness.workload.tokens import Tokens


async def load(settings: LoadSettings, target: CountedTarget, session: Session) -> Finding:
    """Poisson or trace arrivals in an open loop, judged by targets for TTFT and TPOT; or, with
    --agents, conversations that grow turn by turn, with the share of prompts that was cached.

    Exit status: 0, 1 when requests failed or no rate met the targets, 2 when nothing could be
    measured, 130 interrupted.
    """
    tokens = await find_tokens(session.aside, session.server, target.tokenizer, target.vocab_size)
    session.progress.say(f"seed {settings.seed}, {tokens.source}")
    if settings.agents is not None:
        return await agents(settings, tokens, session)
    loader = Loader(session, tokens, settings)
    await loader.warm_up()
    if settings.sweep:
        return await sweep(settings, tokens.source, loader.run, session.control)
    found = Load(settings, tokens.source)
    if session.control.stopped is None:
        found.runs.append(await loader.run(settings.rate))
    return found


class Loader:
    """Runs one rate after another against one server."""

    def __init__(self, session: Session, tokens: Tokens, settings: LoadSettings) -> None:
        self._session, self._tokens, self._settings = session, tokens, settings
        self._draw = random.Random(settings.seed)
        self._prompts = PlanPrompts(session.server.model, tokens, settings)

    async def warm_up(self) -> None:
        """Send the warm-ups. Stops the run if every one fails."""
        plan, _ = self._plan(self._settings.rate)
        asks = [(await self._prompts.prepare("", p)).ask for p in plan[: self._settings.warm_ups]]
        await warm_up(self._session.client, asks, self._session.control)

    async def run(self, rate: float | None) -> Run:
        """Run one rate, in requests per second; None: a trace at its own pace. Raises ValueError
        if the plan does not fit the server, and PromptsFailed."""
        plan, num_clipped = self._plan(rate)
        rate = mean_rate(plan) if rate is None else rate
        labels = [f"{rate:.3g}/s #{number}" for number in range(len(plan))]
        prepared = [
            await self._prompts.prepare(label, planned)
            for label, planned in zip(labels, plan, strict=True)
        ]
        progress = self._session.progress
        progress.begin(f"{rate:.3g} requests/s", len(plan))
        begin_s, exchanges = await open_loop(
            self._session.client, [p.ask for p in prepared], [p.at_s for p in plan],
            self._session.control, progress.step, self._settings.max_under_way or math.inf,
        )  # fmt: skip
        seen = await outcomes(prepared, exchanges, self._tokens)
        left_out = 0 if self._session.control.stopped is not None else exchanges.count(None)
        num_planned = len(plan) - left_out
        found = Run(self._settings, rate, begin_s, seen, num_planned, num_clipped, left_out)
        progress.say(line(found))
        return found

    def _plan(self, rate: float | None) -> tuple[list[Planned], int]:
        settings = self._settings
        if settings.trace is None:
            assert rate is not None
            lengths = settings.input_len, settings.answer_len
            plan = poisson(rate, self._count(rate), *lengths, self._draw)
        else:
            plan = list(settings.trace.plan)
            if rate is not None:
                plan = paced(plan, rate / mean_rate(plan))
            limit_s = math.inf if settings.duration_s is None else settings.duration_s
            inside = sum(planned.at_s <= limit_s for planned in plan)
            plan = plan[: min(settings.requests or len(plan), max(self._least, inside))]
        plan, num_clipped = clipped(plan, settings.max_input_len, settings.max_output_len)
        self._check_fits(plan)
        return plan, num_clipped

    @property
    def _least(self) -> int:
        return self._settings.least_requests if self._settings.sweep else 1

    def _count(self, rate: float) -> int:
        settings = self._settings
        if settings.duration_s is None:
            return settings.requests or settings.least_requests
        count = max(self._least, math.ceil(rate * settings.duration_s))
        return min(count, settings.requests or count)

    def _check_fits(self, plan: Sequence[Planned]) -> None:
        most = self._session.server.max_model_len or math.inf
        if too_long := [p for p in plan if p.input_len + p.output_len > most]:
            raise ValueError(
                f"max_input_len, max_output_len: {len(too_long)} of {len(plan)} requests are "
                f"longer than the server's {most} tokens; say what to cut them to"
            )
