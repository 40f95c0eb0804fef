"""Workers whose devices and hosts take simulated time, for tests of how fast a spread group is.

A device computes what was launched in order. A spread step begins when all members' devices have
come to it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from decode.spread_record import Record
from engine.batch import ForwardBatch, SpreadPlan, StepResult
from prefill.limits import PrefillLimits, RoundLimits
from tests.simulation.fake_engine import FakeEngine, FakeStep
from tests.simulation.fake_exchange import (
    Exchange,
    FakePeerRecord,
    FakeRecord,
    FakeSpreading,
    SpreadStep,
)
from tests.simulation.stage import Stage
from tests.worker.made import make_worker
from transport.wire.layout import PoolSize
from transport.wire.messages import Generate, Prefilled, Tokens
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.spread import SpreadGroup, SpreadMember
from transport.wire.token_ids import packed, to_wire
from worker.settings import PrefixCacheSettings
from worker.spread.group import Group
from worker.spread.membership import Membership
from worker.spread.records import Records
from worker.worker import Worker

HOST_S, LOOK_S = 0.0005, 0.0002
"""What a round costs a host, and how often one that waits looks."""
MOST_TOKENS = 512
"""Of a batch of prompts."""


@dataclass(frozen=True)
class Times:
    """Seconds of a step of ``rows`` sequences, alone and spread, and of a batch of prompts, whose
    kernels the host launches for ``launch_s`` while the device computes."""

    local_s: Callable[[int], float]
    spread_s: Callable[[int], float]
    prompts_s: Callable[[int], float]
    launch_s: float = 0.0


class Computed:
    """When a device begins what was launched behind ``before``, and ends it. None: not known yet,
    since another device has not come to it."""

    def __init__(self, launched_at: float, before: "Computed | None") -> None:
        self.launched_at, self.before = launched_at, before
        self._begins_at: float | None = None
        self._ended_at: float | None = None

    def begins_at(self) -> float | None:
        if self._begins_at is None:
            free_at = 0.0 if self.before is None else self.before.ended_at()
            if free_at is not None:
                self._begins_at = max(self.launched_at, free_at)
        return self._begins_at

    def ended_at(self) -> float | None:
        if self._ended_at is None and (found := self._end()) is not None:
            self._ended_at, self.before = found, None
        return self._ended_at

    def _end(self) -> float | None:
        raise NotImplementedError


class Alone(Computed):
    def __init__(self, launched_at: float, before: Computed | None, seconds: float) -> None:
        super().__init__(launched_at, before)
        self._seconds = seconds

    def _end(self) -> float | None:
        begins_at = self.begins_at()
        return None if begins_at is None else begins_at + self._seconds


class Together(Computed):
    """``parts``: the step's parts on the devices of all ``number`` members, as they launch it."""

    def __init__(
        self,
        launched_at: float,
        before: Computed | None,
        parts: "list[Together]",
        number: int,
        seconds: float,
    ) -> None:
        super().__init__(launched_at, before)
        self._parts, self._number, self._seconds = parts, number, seconds
        parts.append(self)

    def _end(self) -> float | None:
        if len(self._parts) < self._number:
            return None
        came = [part.begins_at() for part in self._parts]
        if any(at is None for at in came):
            return None
        return max(at for at in came if at is not None) + self._seconds

    @property
    def waited_s(self) -> float:
        """How long the first device waited for the last one."""
        came = [at for part in self._parts if (at := part.begins_at()) is not None]
        return max(came) - min(came)


class TimedEngine(FakeEngine):
    """``last``: what was launched last on its device."""

    def __init__(self, stage: Stage, times: Times) -> None:
        super().__init__(PoolSize(400, 64))
        self.stage, self.times = stage, times
        self.last: Computed | None = None

    def launch(self, batch: ForwardBatch) -> FakeStep:
        step = super().launch(batch)
        num_prompt = sum(row.length for row in batch.rows if row.token_ids is not None)
        times = self.times
        seconds = times.prompts_s(num_prompt) if num_prompt else times.local_s(len(batch.rows))
        self.last = Alone(self.stage.now, self.last, seconds)
        if num_prompt:
            self.stage.sleep(times.launch_s)
        return waits(step, self.stage, self.last)


class TimedSpreading(FakeSpreading):
    """``parts``: by round, what the members have launched."""

    engine: TimedEngine

    def __init__(self, engine: TimedEngine, name: str, exchange: Exchange, parts: Any) -> None:
        super().__init__(engine, name, exchange)
        self._parts = parts

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> SpreadStep:
        step = super().launch(batch, plan)
        engine, parts = self.engine, self._parts.setdefault(plan.round, [])
        seconds = engine.times.spread_s(plan.bucket)
        number = len(self.members)
        engine.last = Together(engine.stage.now, engine.last, parts, number, seconds)
        return waits(step, engine.stage, engine.last)


def waits(step: Any, stage: Stage, computed: Computed) -> Any:
    """``step``, whose host waits until it is ``computed``."""
    result = step.result

    def is_done() -> bool:
        ended_at = computed.ended_at()
        return ended_at is not None and ended_at <= stage.now

    def when_computed() -> StepResult:
        while (ended_at := computed.ended_at()) is None:
            stage.sleep(LOOK_S)
        if ended_at > stage.now:
            stage.sleep(ended_at - stage.now)
        began_at = computed.begins_at()
        assert began_at is not None
        step.took_s = ended_at - began_at
        return result()

    step.result = when_computed
    step.looks_done = is_done
    return step


class TimedSession:
    """Brings the orders in ``inbox``, and notes when the tokens of each step were sent, and how
    long first tokens took."""

    in_socket_s = 0.0
    welcomed = False

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.inbox: list[Any] = []
        self.tokens_at: list[float] = []
        self.asked_at: dict[str, float] = {}
        self.ttfts_s: list[float] = []

    def wake(self) -> None:
        """It looks often enough."""

    def send(self, message: object) -> None:
        if isinstance(message, Tokens) and message.tokens:
            self.tokens_at.append(self._stage.now)
        elif isinstance(message, Prefilled):
            self.ttfts_s.append(self._stage.now - self.asked_at[message.token.request_id])

    def receive(self, timeout_s: float, *, awake_s: float = 0.0) -> list[Any]:
        until = self._stage.now + timeout_s
        while not self.inbox and self._stage.now < until:
            self._stage.sleep(LOOK_S)
        found, self.inbox[:] = list(self.inbox), []
        return found


@dataclass
class TimedWorker:
    membership: Membership
    session: TimedSession
    worker: Worker
    now: Callable[[], float]
    num_asked: int = 0

    def ask(self, length: int, num_tokens: int) -> None:
        """Order a prompt, and its answer."""
        self.num_asked += 1
        prompt = to_wire(packed(tuple(i % 64 for i in range(length))))
        name = f"{id(self)}-{self.num_asked}"
        stop = StopRule(num_tokens)
        order = Generate(name, 1, self.num_asked, prompt, length, SamplingParams(), stop)
        self.session.asked_at[name] = self.now()
        self.session.inbox.append(order)

    @property
    def num_late(self) -> int:
        """How often it waited for another one in vain."""
        return sum(number for _, number in self.membership.counts().late)

    @property
    def spread_share(self) -> float:
        counts = self.membership.counts()
        return counts.num_steps / max(1, counts.num_steps + counts.num_local)


def exchange_on(stage: Stage) -> Exchange:
    """An exchange in which no step is aborted."""
    exchange = Exchange(random.Random(1), lambda step: stage.sleep(LOOK_S))
    exchange.rng = SimpleNamespace(random=lambda: 1.0)  # type: ignore[assignment]
    return exchange


def records_of(name: str, records: dict[str, Record]) -> Records:
    """The record of a member, and how it reads those of others."""
    return Records(FakeRecord(name, records), lambda peer: FakePeerRecord(peer, records, set()))


def timed_worker(
    engine: TimedEngine, session: TimedSession, role: Any, name: str, group: Group
) -> Worker:
    return make_worker(
        engine, session, role, instance=name, lookahead=1, group=group,
        limits=RoundLimits(PrefillLimits(MOST_TOKENS, 16), MOST_TOKENS),
        clock=lambda: engine.stage.now, prefix_cache=PrefixCacheSettings(enabled=False),
    )  # fmt: skip


def serve(worker: Worker, stage: Stage) -> None:
    while True:
        worker.round(1.0)
        stage.sleep(HOST_S)


class TimedPair:
    """Two colocated workers that are one spread group."""

    def __init__(self, times: Times) -> None:
        self.stage = Stage()
        records: dict[str, Record] = {}
        self._parts: dict[int, list[Together]] = {}
        exchange = exchange_on(self.stage)
        parts = self._parts
        self.workers = [self._worker(f"w-{i}", times, exchange, records, parts) for i in (0, 1)]
        members = tuple(
            SpreadMember(f"w-{i}", each.membership.export) for i, each in enumerate(self.workers)
        )
        for each in self.workers:
            each.session.inbox.append(SpreadGroup(1, members))
            self.stage.act(lambda worker=each.worker: serve(worker, self.stage))

    @property
    def longest_wait_s(self) -> float:
        """Of a device for the other one."""
        return max(parts[0].waited_s for parts in self._parts.values())

    def _worker(
        self, name: str, times: Times, exchange: Exchange, records: Any, parts: Any
    ) -> TimedWorker:
        engine = TimedEngine(self.stage, times)
        membership = Membership(
            TimedSpreading(engine, name, exchange, parts), name, "2", records_of(name, records),
            clock=lambda: self.stage.now,
        )  # fmt: skip
        session = TimedSession(self.stage)
        worker = timed_worker(engine, session, "colocated", name, membership)
        return TimedWorker(membership, session, worker, lambda: self.stage.now)
