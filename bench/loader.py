"""Load: an open loop of Poisson or trace arrivals, judged by latency targets.

One run is one rate. A request is due when the plan says, whatever the server does; every latency
counts from there, and how late the client itself was is part of the result.
"""

import math
import random
from collections.abc import Sequence

from bench.client.client import Client
from bench.client.exchange import Exchange
from bench.client.reading import read
from bench.client.record import Failure
from bench.figures.counting import count, judged
from bench.figures.outcome import Outcome
from bench.load_result import Run, line
from bench.load_settings import LoadSettings
from bench.loops import closed_loop, open_loop
from bench.progress import Progress
from bench.run_control import RunControl
from bench.server_info import ServerInfo
from bench.workload.plan import Planned, clipped, mean_rate, paced, poisson
from bench.workload.plan_prompts import PlanPrompts
from bench.workload.tokens import Tokens


class Loader:
    """Runs one rate after another against one server."""

    def __init__(
        self,
        client: Client,
        server: ServerInfo,
        tokens: Tokens,
        settings: LoadSettings,
        trace: Sequence[Planned],
        control: RunControl,
        progress: Progress,
    ) -> None:
        self._client, self._tokens, self._settings = client, tokens, settings
        self._trace, self._control, self._progress = trace, control, progress
        self._max_len = server.max_model_len
        self._draw = random.Random(settings.seed)
        self._prompts = PlanPrompts(
            server.model,
            tokens,
            seed=settings.seed,
            prompt_as=settings.prompt_as,
            fields=settings.fields(),
        )

    async def warm_up(self) -> None:
        """Stops the run when the server answers none of them."""
        plan, _ = self._plan(self._settings.rate)
        asks = [(await self._prompts.ask(p))[0] for p in plan[: self._settings.warm_ups]]
        exchanges = await closed_loop(self._client, asks, max(1, len(asks)), self._control)
        records = [read(exchange) for exchange in exchanges if exchange is not None]
        if records and all(r.failure not in (None, Failure.MISCOUNT) for r in records):
            why = f"{records[0].failure}: {records[0].detail}"
            self._control.stop(f"every warm-up failed: {why}")

    async def run(self, rate: float | None) -> Run:
        """At ``rate`` requests a second; None: a trace at its own pace. Raises ValueError where
        the plan does not fit the server, and PromptsFailed."""
        plan, num_clipped = self._plan(rate)
        asks = [await self._prompts.ask(planned) for planned in plan]
        rate = mean_rate(plan) if rate is None else rate
        self._progress.begin(f"{rate:.3g} requests/s", len(plan))

        def on_end(index: int, exchange: Exchange, failed: bool) -> None:
            self._progress.step(failed=failed)

        begin_s, exchanges = await open_loop(
            self._client, [ask for ask, _ in asks], [p.at_s for p in plan], self._control, on_end
        )
        outcomes = []
        for number, (exchange, (ask, length)) in enumerate(zip(exchanges, asks, strict=True)):
            if exchange is not None:
                record = read(exchange)
                counted = await count(record, self._tokens, asked=ask.max_tokens, exact=ask.exact)
                label = f"{rate:.3g}/s #{number}"
                outcomes.append(Outcome(label, judged(record, counted), counted, length))
        found = Run(self._settings, rate, begin_s, outcomes, len(plan), num_clipped)
        self._progress.say(line(found))
        return found

    def _plan(self, rate: float | None) -> tuple[list[Planned], int]:
        settings = self._settings
        if settings.trace is None:
            assert rate is not None
            plan = poisson(rate, self._count(rate), settings.inputs, settings.outputs, self._draw)
        else:
            plan = list(self._trace)
            if rate is not None:
                plan = paced(plan, rate / mean_rate(plan))
            limit_s = math.inf if settings.duration_s is None else settings.duration_s
            least = settings.least_requests if settings.sweep else 1
            inside = sum(planned.at_s <= limit_s for planned in plan)
            plan = plan[: min(settings.requests or len(plan), max(least, inside))]
        plan, num_clipped = clipped(plan, settings.max_input_len, settings.max_output_len)
        self._check_fits(plan)
        return plan, num_clipped

    def _count(self, rate: float) -> int:
        settings = self._settings
        if settings.duration_s is None:
            return settings.requests or settings.least_requests
        least = settings.least_requests if settings.sweep else 1
        count = max(least, math.ceil(rate * settings.duration_s))
        return min(count, settings.requests or count)

    def _check_fits(self, plan: Sequence[Planned]) -> None:
        if self._max_len is None:
            return
        too_long = [p for p in plan if p.input_len + p.output_len > self._max_len]
        if too_long:
            raise ValueError(
                f"max_input_len, max_output_len: {len(too_long)} of {len(plan)} requests are "
                f"longer than the server's {self._max_len} tokens; say what to cut them to"
            )
