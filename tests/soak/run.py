"""A run: load, a fault, recovery, the load's pause and what must hold then, again and again."""

import asyncio
import random
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from tests.soak import check, tenants
from tests.soak.cases import MIN_MARGIN_NATS, Case, prepared
from tests.soak.faults import FAULTS, Scene, possible, sequence
from tests.soak.load import Load
from tests.soak.resumed import explained
from tests.soak.site import Site

LEAD_S = 3.0
WHOLE_S = 90.0
AFTER_S = 2.0
MAX_DETAILS = 8


@dataclass(frozen=True)
class Plan:
    """``every_s`` lies between the beginnings of two faults, or as long as it takes to recover from
    one and to check; ``only`` are the faults to draw from, () for all that the roles allow;
    ``margin_nats`` is that of ``prepared`` in tests/soak/cases.py."""

    run_s: float
    every_s: float
    seed: int
    num_clients: int
    num_cases: int
    only: tuple[str, ...] = ()
    margin_nats: float = MIN_MARGIN_NATS

    def __post_init__(self) -> None:
        for name in ("run_s", "every_s", "num_clients", "num_cases", "margin_nats"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not positive")
        if unknown := sorted(set(self.only) - FAULTS.keys()):
            raise ValueError(f"fault: {unknown[0]!r} is none of {', '.join(FAULTS)}")


@dataclass
class Round:
    """A fault and what came of it. ``silence_s``: from the beginning of the fault to the next token
    of each stream that was open then, the median and the most; ``whole_s``: until every worker was
    there again; ``release_s``: from the last response's end until nothing was held.
    ``spread_steps``: those that the live workers have taken by then. ``details`` are what clients
    were told that got no answer. ``rounded_otherwise``: answers that differ because their prompts
    were computed again (tests/soak/resumed.py)."""

    fault: str
    at_s: float
    what: str = ""
    outcomes: dict[str, int] = field(default_factory=dict)
    details: dict[str, int] = field(default_factory=dict)
    streams_open: int = 0
    silence_p50_s: float | None = None
    silence_max_s: float | None = None
    whole_s: float | None = None
    release_s: float | None = None
    spread_steps: int = 0
    rounded_otherwise: int = 0
    violations: list[str] = field(default_factory=list)


class Soak:
    """``rounds`` and ``violations`` grow while it runs."""

    def __init__(self, site: Site, plan: Plan) -> None:
        self.rounds: list[Round] = []
        self.violations: list[str] = []
        self.cases: list[Case] = []
        self.unstable = 0
        self.num_tokens = 0
        self._site, self._plan = site, plan
        self._draw = random.Random(plan.seed)
        self._names: list[str] = []

    async def run(self) -> None:
        """Ends after ``run_s``, or with the first round that has violations."""
        site, plan = self._site, self._plan
        async with httpx.AsyncClient(
            base_url=site.stack.url, timeout=60.0, headers=site.stack.headers()
        ) as http:
            self.cases, self.unstable = await prepared(
                http, plan.seed, plan.num_cases, plan.margin_nats
            )
        load = Load(
            site.stack.url, self.cases, plan.num_clients, plan.seed, headers=tenants.headers
        )
        self._began = time.monotonic()
        try:
            while time.monotonic() - self._began < plan.run_s and not self.violations:
                await self._round(load)
        finally:
            await load.close()

    async def _round(self, load: Load) -> None:
        name = self._next()
        load.seen.clear()
        before, instance = await check.counters(load.http), self._coordinator()
        load.resume()
        await asyncio.sleep(LEAD_S)
        began = time.monotonic()
        found = Round(name, round(began - self._began, 1))
        self.rounds.append(found)
        try:
            found.what = await FAULTS[name].inject(Scene(self._site, load, self._draw))
        except Exception as error:
            found.violations.append(f"the fault could not be done as planned: {error!r}")
        over = time.monotonic()
        # A dead process is in the status until it is missed.
        await asyncio.sleep(AFTER_S)
        _, said = await check.until(self._site.whole, WHOLE_S)
        found.whole_s = round(time.monotonic() - began, 2)
        if said:
            found.violations.append(f"not whole after {WHOLE_S:g} s: {said}")
        rest_s = self._plan.every_s - LEAD_S - (time.monotonic() - began)
        await asyncio.sleep(max(rest_s, AFTER_S))
        await load.pause()
        restarted = self._coordinator() != instance
        window = check.Window(FAULTS[name], began, over, list(load.seen), restarted, before)
        await self._check(load.http, window, found)
        print(row(found), flush=True)

    async def _check(self, http: httpx.AsyncClient, window: check.Window, found: Round) -> None:
        release_s, held = await check.until(self._site.unreleased, check.RELEASE_S)
        found.release_s = round(release_s, 2)
        _, unlike = await check.until(lambda: check.records(self._site, window), check.RECORDED_S)
        miscounted = await check.counted(http, window)
        if self._plan.margin_nats > MIN_MARGIN_NATS:  # bfloat16
            retried = self._site.retried()
            for seen in window.seen:
                if seen.wrong and seen.outcome == "finished" and seen.http_id in retried:
                    seen.explained = await explained(
                        http, tenants.headers(), seen.case, seen.token_ids
                    )
        found.rounded_otherwise = sum(seen.explained for seen in window.seen)
        found.violations += [*check.answers(window), *filter(None, (held, unlike, miscounted))]
        found.spread_steps = await self._site.spread_steps()
        found.outcomes = dict(Counter(seen.outcome for seen in window.seen))
        told = [f"{seen.outcome}: {seen.detail}" for seen in window.seen if seen.detail]
        found.details = dict(Counter(told).most_common(MAX_DETAILS))
        silences = [s for seen in window.seen if (s := seen.silence_s(window.began)) is not None]
        found.streams_open = len(silences)
        if silences:
            found.silence_p50_s = round(statistics.median(silences), 3)
            found.silence_max_s = round(max(silences), 3)
        self.num_tokens += sum(len(seen.token_ids) for seen in window.seen)
        self.violations += [f"{found.fault} at {found.at_s} s: {v}" for v in found.violations]

    def _next(self) -> str:
        if not self._names:
            names = possible(self._site)
            allowed = [name for name in names if name in (self._plan.only or names)]
            self._names = sequence(allowed, self._draw)
        return self._names.pop()

    def _coordinator(self) -> int:
        return self._site.stack.pids().get("coordinator", 0)


HEADER = (
    f"{'at s':>6}  {'fault':28}  {'requests':>8}  {'silence p50':>11}  {'most':>6}  "
    f"{'whole':>6}  {'released':>8}  what"
)


def row(found: Round) -> str:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    others = {k: n for k, n in found.outcomes.items() if k != "finished"}
    what = found.what + (f"; {others}" if others else "")
    what += f"; {found.spread_steps} spread steps" if found.spread_steps else ""
    verdict = "" if not found.violations else "  VIOLATED: " + "; ".join(found.violations[:3])
    return (
        f"{found.at_s:6.1f}  {found.fault:28}  {sum(found.outcomes.values()):8}  "
        f"{shown(found.silence_p50_s):>11}  {shown(found.silence_max_s):>6}  "
        f"{shown(found.whole_s):>6}  {shown(found.release_s):>8}  {what}{verdict}"
    )


def results(soak: Soak) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    for each in soak.rounds:
        outcomes.update(each.outcomes)
    return {
        "faults": len(soak.rounds),
        "faults_by_name": dict(sorted(Counter(r.fault for r in soak.rounds).items())),
        "requests": sum(outcomes.values()),
        "outcomes": dict(outcomes),
        "tokens_compared": soak.num_tokens,
        "cases": len(soak.cases),
        "cases_left_out": soak.unstable,
        "rounds": [asdict(each) for each in soak.rounds],
    }
