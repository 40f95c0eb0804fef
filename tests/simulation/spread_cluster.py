"""A cluster whose decoding workers compute steps together; its processes may stand still.

A host that waits for its device lets the others go on, so that its wait ends by what they do.
Groups time steps while they are idle. Workers may keep what they have timed in different folders.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from coordinator.core.spread.groups import SpreadGroups
from decode.lockstep import LockstepTimes
from decode.spread_record import Record
from decode.spread_trials import Point
from tests.simulation.cluster import Cluster, Node
from tests.simulation.fake_engine import LAYOUT, FakeEngine, Killed
from tests.simulation.fake_exchange import (
    Exchange,
    FakeLending,
    FakePeerRecord,
    FakeRecord,
    FakeSpreading,
    LentStep,
    SpreadStep,
)
from transport.wire.layout import PoolSize
from transport.wire.messages import ToWorker
from transport.wire.session import Work
from worker.spread.either_place import EitherPlace
from worker.spread.kept_tables import KeptTables
from worker.spread.lender import Lender
from worker.spread.membership import Membership
from worker.spread.records import Records
from worker.spread.trial import Engines
from worker.spread.trials import StepTrials

TIMES = LockstepTimes(wait_s=0.6, back_off_s=0.05, max_back_off_s=0.4, forgiven_after=5)
TRIALS = Point(1), Point(3), Point(2, 3)


class SpreadCluster(Cluster):
    """``disturb`` is called now and then while hosts wait for their devices."""

    def __init__(self, rng: random.Random, *, lookahead: int, size: PoolSize, **more) -> None:
        super().__init__(rng, lookahead=lookahead, size=size, **more)
        self.layout = LAYOUT  # models that spread steps have states
        self.exchange = Exchange(rng, self._wait)
        self.groups = SpreadGroups(self.registry, self._send, lambda: self.now, 1)
        self.disturb: Callable[[], None] = lambda: None
        self.enter_rows = str(rng.choice([1, 2, 4, 8]))
        self.num_measured = 0
        self._folder = TemporaryDirectory(prefix="baton-simulated-")
        self._table_folders = [Path(self._folder.name) / str(i) for i in range(rng.randint(1, 2))]
        self.records: dict[str, Record] = {}
        self.torn: set[str] = set()
        self._waiting: list[Node] = []
        self._num_read = 0
        self._trials: tuple[Point, ...] = TRIALS
        self._stalled_until: dict[str, float] = {}

    def add_worker(self, role: str, *args, **more) -> str:
        """Its trials give all memory back before a message is handled."""
        instance = super().add_worker(role, *args, **more)
        pool = self.nodes[instance].pool
        assert pool is not None
        carry_out, group = pool._orders._carry_out, pool._group

        def carry_out_checked(message: Work) -> None:
            assert group.trial_memory == (0, 0)
            carry_out(message)

        pool._orders._carry_out = carry_out_checked  # type: ignore[method-assign]
        return instance

    def stall(self, instance: str, seconds: float) -> None:
        """Its process stands still; its device goes on."""
        self._stalled_until[instance] = self.now + seconds

    def kill_worker(self, instance: str) -> None:
        if self.rng.random() < 0.1:
            self.torn.add(instance)
        super().kill_worker(instance)

    def end_trials(self) -> None:
        """Let idle groups time their steps for a while, and count the members that decide by what
        was measured."""
        for _ in range(2_000):
            self.tick()
        self._trials = ()  # of groups that form from now on
        for each in self.memberships():
            self.num_measured += each.counts().table == "measured here"
            each.interrupt()
            member = each._member if isinstance(each, EitherPlace) else each
            if isinstance(member, Membership):
                member._step_times._points = ()

    def _fine_clock(self) -> float:
        """No two times are the same, as on a real machine."""
        self._num_read += 1
        return self.now + 1e-9 * self._num_read

    def memberships(self) -> list[Membership | Lender | EitherPlace]:
        return [n.pool._group for n in self.nodes.values() if n.hello.spread is not None]

    def _overlaps(self, role: str, any_role: bool) -> bool:
        return False

    def _spread_membership(
        self, instance: str, role: str, engine: FakeEngine, any_role: bool
    ) -> Membership | Lender | EitherPlace:
        if self.rng.random() < 0.1 and self.nodes:
            other = self.rng.choice(list(self.nodes))
            self.exchange.unreachable.add(frozenset((instance, other)))
        record = FakeRecord(instance, self.records)
        open_peer = partial(FakePeerRecord, records=self.records, torn=self.torn)
        records = Records(record, open_peer)
        lending = FakeLending(engine, instance, self.exchange)
        lender = Lender(lending, instance, records, clock=lambda: self.now)
        if role == "prefill" and not any_role:
            return lender
        spreading = FakeSpreading(engine, instance, self.exchange)
        kept = KeptTables(self.rng.choice(self._table_folders), "a simulated GPU")
        trials = StepTrials(
            Engines(engine, spreading),
            kept,
            instance,
            sizes=lambda shapes: self._trials,
            clock=self._fine_clock,
        )
        member = Membership(
            spreading, instance, self.enter_rows, records, times=TIMES, clock=lambda: self.now,
            step_times=trials,
        )  # fmt: skip
        return EitherPlace(instance, member, lender) if any_role else member

    def _send(self, instance: str, message: ToWorker) -> None:
        if instance in self.nodes:
            self.nodes[instance].inbox.append(message)

    def _apply(self) -> None:
        super()._apply()
        self.groups.update()

    def _deliver(self, node: Node) -> None:
        if type(node.outbox[0]).__name__ == "SpreadJoined":
            self.groups.joined(self.registry.require(node.hello.instance), node.outbox.popleft())
        else:
            super()._deliver(node)

    def _is_held(self, node: Node) -> bool:
        return node in self._waiting or self._stalled_until.get(node.hello.instance, 0) > self.now

    def _wait(self, step: SpreadStep | LentStep) -> None:
        (node,) = (n for n in [*self.nodes.values()] if n.engine is step.engine)
        self._waiting.append(node)
        try:
            for _ in range(self.rng.choice([30, 300, 1_000])):
                if step.executed or step.may_run:
                    return
                if self.rng.random() < 0.002:
                    self.disturb()
                self.tick()
                if node.hello.instance not in self.nodes:
                    raise Killed
        finally:
            self._waiting.remove(node)
        if not step.executed:  # the device may have gone on in the last moment
            step.give_up()
