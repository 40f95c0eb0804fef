"""A decode worker whose spread group has a lender, in simulated time (timed.py).

The decode worker's device looks for the lender where a step begins. If the lender's device has come
by then, it shares the step, and both end it together. If it comes later it goes on at once.
"""

from collections.abc import Callable
from typing import Any

from decode.spread_record import Record
from engine.batch import ForwardBatch, SpreadPlan
from engine.spread.interface import Lent
from tests.simulation.fake_exchange import FakeSpreading, SpreadStep
from tests.simulation.stage import Stage
from tests.simulation.timed import (
    LOOK_S,
    Computed,
    TimedEngine,
    TimedSession,
    Times,
    exchange_on,
    records_of,
    serve,
    timed_worker,
    waits,
)
from transport.wire.messages import Generate, Prefill
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.spread import SpreadGroup, SpreadMember
from transport.wire.token_ids import packed, to_wire
from worker.spread.lender import Lender
from worker.spread.membership import Membership


class Own(Computed):
    """The decode worker's part of a step. ``lent``: what the lender launches for it, if anything.
    ``alone_s``, ``shared_s``: what it takes without and with the lender."""

    def __init__(
        self,
        launched_at: float,
        before: Computed | None,
        lent: "list[Loan]",
        alone_s: float,
        shared_s: float,
    ) -> None:
        super().__init__(launched_at, before)
        self.is_shared = False
        self._lent, self._alone_s, self._shared_s = lent, alone_s, shared_s

    def _end(self) -> float | None:
        if (came_at := self.begins_at()) is None:
            return None
        offered = [at for loan in self._lent if (at := loan.begins_at()) is not None]
        self.is_shared = any(at <= came_at for at in offered)
        return came_at + (self._shared_s if self.is_shared else self._alone_s)


class Loan(Computed):
    """The lender's part of a step. ``own``: the decode worker's part, once that is launched."""

    def __init__(
        self, launched_at: float, before: Computed | None, own: Callable[[], Own | None]
    ) -> None:
        super().__init__(launched_at, before)
        self.takes_part = False
        self._own = own

    def _end(self) -> float | None:
        own, begins_at = self._own(), self.begins_at()
        if own is None or begins_at is None or (came_at := own.begins_at()) is None:
            return None
        self.takes_part = begins_at <= came_at
        return own.ended_at() if self.takes_part else begins_at


Rounds = dict[int, tuple[list[Own], list[Loan]]]


class OwnSpreading(FakeSpreading):
    engine: TimedEngine

    def __init__(self, engine: TimedEngine, name: str, rounds: Rounds, alone_s: float) -> None:
        super().__init__(engine, name, exchange_on(engine.stage))
        self._rounds, self._alone_s = rounds, alone_s
        self.parts: list[Own] = []

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> SpreadStep:
        step, engine = super().launch(batch, plan), self.engine
        own, lent = self._rounds.setdefault(plan.round, ([], []))
        shared_s = engine.times.spread_s(plan.bucket)
        own.append(Own(engine.stage.now, engine.last, lent, self._alone_s, shared_s))
        engine.last = own[0]
        self.parts.append(own[0])
        return waits(step, engine.stage, own[0])


class TimedLoan:
    """A ``LentStep``."""

    def __init__(self, loan: Loan, stage: Stage) -> None:
        self._loan, self._stage = loan, stage

    @property
    def has_ended(self) -> bool:
        ended_at = self._loan.ended_at()
        return ended_at is not None and ended_at <= self._stage.now

    def result(self) -> Lent:
        while not self.has_ended:
            self._stage.sleep(LOOK_S)
        return Lent(self._loan.takes_part)


class TimedLending(FakeSpreading):
    engine: TimedEngine

    def __init__(self, engine: TimedEngine, name: str, rounds: Rounds) -> None:
        super().__init__(engine, name, exchange_on(engine.stage))
        self._rounds = rounds

    def lend(self, plan: SpreadPlan) -> TimedLoan:
        engine = self.engine
        own, lent = self._rounds.setdefault(plan.round, ([], []))
        loan = Loan(engine.stage.now, engine.last, lambda: own[0] if own else None)
        lent.append(loan)
        engine.last = loan
        return TimedLoan(loan, engine.stage)


class TimedLender:
    """A decode worker, and a prefill worker that lends. A spread step of the decode worker alone
    takes ``alone_s``."""

    def __init__(self, times: Times, alone_s: float) -> None:
        self.stage = Stage()
        rounds: Rounds = {}
        records: dict[str, Record] = {}
        engines = [TimedEngine(self.stage, times) for _ in range(2)]
        self._spreading = OwnSpreading(engines[0], "d", rounds, alone_s)
        own = records_of("d", records)
        member = Membership(self._spreading, "d", "2", own, clock=lambda: self.stage.now)
        lending = TimedLending(engines[1], "p", rounds)
        lender = Lender(lending, "p", records_of("p", records), clock=lambda: self.stage.now)
        exports = (SpreadMember("d", member.export), SpreadMember("p", lender.export))
        self.decoding, self.computing = TimedSession(self.stage), TimedSession(self.stage)
        for engine, session, role, group in (
            (engines[0], self.decoding, "decode", member),
            (engines[1], self.computing, "prefill", lender),
        ):
            worker = timed_worker(engine, session, role, role, group)
            session.inbox.append(SpreadGroup(1, exports, 1))
            self.stage.act(lambda worker=worker: serve(worker, self.stage))

    @property
    def shared(self) -> int:
        """How many steps the lender has shared."""
        return sum(part.is_shared for part in self._spreading.parts)

    def decode(self, num_tokens: int) -> None:
        self._order(self.decoding, Generate, 8, num_tokens)

    def compute(self, length: int) -> None:
        self._order(self.computing, Prefill, length, 1)

    def _order(self, session: TimedSession, kind: Any, length: int, num_tokens: int) -> None:
        number = len(session.asked_at)
        session.asked_at[f"r-{number}"] = self.stage.now
        prompt = to_wire(packed(tuple(i % 64 for i in range(length))))
        what = SamplingParams(), StopRule(num_tokens)
        session.inbox.append(kind(f"r-{number}", 1, number, prompt, length, *what))
