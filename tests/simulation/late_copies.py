"""A copy stream whose copies happen when the simulation lets them."""

import random
from collections import deque
from collections.abc import Callable

from transport.copy.pull import Wanted, copy_offer
from transport.copy.tensors import CacheTensors
from transport.wire.memory_export import MemoryExport


class LatePull:
    def __init__(self, copy) -> None:
        self._copy, self._outcome, self._error = copy, None, None
        self._done = False

    def execute(self) -> None:
        self._done = True
        try:
            self._outcome = self._copy()
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        return self._done

    def wait(self, timeout_s: float) -> bool:
        return self._done

    def result(self):
        if self._error:
            raise self._error
        return self._outcome


class LateCopies:
    """The copy stream: a pull executes at once, ahead of steps launched before it, or whenever
    the simulation gets to it; or, ``stuck``, never."""

    def __init__(
        self,
        own: CacheTensors,
        rng: random.Random,
        find: Callable[[MemoryExport], CacheTensors],
        *,
        stuck: bool = False,
    ) -> None:
        self._own = own
        self._stuck = stuck
        self._rng = rng
        self._find = find
        self._peers: dict[str, CacheTensors] = {}
        self.queue: deque[LatePull] = deque()

    def open(self, instance: str, export: MemoryExport) -> None:
        assert instance not in self._peers, "opened twice"
        self._peers[instance] = self._find(export)

    def close_peer(self, instance: str) -> None:
        self._peers.pop(instance, None)

    def warm_up(self) -> None:
        pass

    def pull(self, wanted: list[Wanted]) -> list[LatePull]:
        return [self._pull(each) for each in wanted]

    def _pull(self, wanted: Wanted) -> LatePull:
        peer = self._peers[wanted.offer.instance]
        late = LatePull(lambda: copy_offer(self._own, peer, wanted))
        if wanted.in_probe or (not self.queue and self._rng.random() < 0.3 and not self._stuck):
            late.execute()
        elif not self._stuck:
            self.queue.append(late)
        return late

    def close(self) -> bool:
        self.queue.clear()
        return True
