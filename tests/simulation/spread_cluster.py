"""A cluster whose decoding workers compute steps together; its processes may stand still.

A host that waits for its device lets the others go on, so that its wait ends by what they do.
"""

import random
from collections.abc import Callable
from functools import partial

from coordinator.core.spread.groups import SpreadGroups
from decode.lockstep import LockstepTimes
from decode.spread_record import Record
from tests.simulation.cluster import Cluster, Node
from tests.simulation.fake_engine import FakeEngine, Killed
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
from worker.spread.lender import Lender
from worker.spread.membership import Membership

TIMES = LockstepTimes(
    enter_s=0.6, step_s=0.4, back_off_s=0.05, max_back_off_s=0.4, forgiven_after=5
)


class SpreadCluster(Cluster):
    """``disturb`` is called now and then while hosts wait for their devices."""

    def __init__(self, rng: random.Random, *, lookahead: int, size: PoolSize, **more) -> None:
        super().__init__(rng, lookahead=lookahead, size=size, **more)
        self.exchange = Exchange(rng, self._wait)
        self.groups = SpreadGroups(self.registry, self._send, lambda: self.now, 1)
        self.disturb: Callable[[], None] = lambda: None
        self.enter_rows = str(rng.choice([1, 2, 4, 8]))
        self.records: dict[str, Record] = {}
        self.torn: set[str] = set()
        self._waiting: list[Node] = []
        self._stalled_until: dict[str, float] = {}

    def stall(self, instance: str, seconds: float) -> None:
        """Its process stands still; its device goes on."""
        self._stalled_until[instance] = self.now + seconds

    def kill_worker(self, instance: str) -> None:
        if self.rng.random() < 0.1:
            self.torn.add(instance)
        super().kill_worker(instance)

    def memberships(self) -> list[Membership | Lender]:
        return [n.pool._group for n in self.nodes.values() if n.hello.spread is not None]

    def _spread_membership(
        self, instance: str, role: str, engine: FakeEngine
    ) -> Membership | Lender:
        if self.rng.random() < 0.1 and self.nodes:
            other = self.rng.choice(list(self.nodes))
            self.exchange.unreachable.add(frozenset((instance, other)))
        record = FakeRecord(instance, self.records)
        open_peer = partial(FakePeerRecord, records=self.records, torn=self.torn)
        if role == "prefill":
            lending = FakeLending(engine, instance, self.exchange)
            return Lender(lending, instance, record, open_peer=open_peer, clock=lambda: self.now)
        spreading = FakeSpreading(engine, instance, self.exchange)
        return Membership(
            spreading, instance, self.enter_rows, record, times=TIMES, clock=lambda: self.now,
            open_peer=open_peer,
        )  # fmt: skip

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
