"""One worker process of a simulated cluster."""

import random
from collections import deque
from dataclasses import dataclass, field

from tests.engine.late_host_copies import LateHostCopier
from tests.simulation.fake_engine import FakeEngine
from tests.simulation.late_copies import LateCopies
from transport.wire.messages import Heartbeat, Hello
from worker.worker import Worker


@dataclass(eq=False)
class Node:
    """One worker process: its pool, its mailboxes, its device."""

    hello: Hello
    engine: FakeEngine
    pool: Worker | None = None
    copies: LateCopies | None = None
    host: LateHostCopier | None = None
    inbox: deque = field(default_factory=deque)
    outbox: deque = field(default_factory=deque)
    has_read_all: bool = False

    @property
    def may_beat(self) -> bool:
        """It reads all that has come between two heartbeats, and the next one goes out later than
        the one before is read."""
        return self.has_read_all and not any(isinstance(m, Heartbeat) for m in self.outbox)


@dataclass
class ChangingDrafts:
    """Another number of drafts for every step."""

    rng: random.Random

    def num_next(self, num_sequences: int) -> int:
        return self.rng.choice([0, 1, 3])

    def verified(self, num_drafts: int, num_accepted: int) -> None:
        """It makes no difference."""
