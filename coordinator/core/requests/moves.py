"""Moves: which requests that are being decoded go on at another worker. Pure.

The requests of a worker that drains, or has become a prefill worker, move to the workers that have
room for them, so that it can end in a second instead of with its longest answer. With soft pools a
prefill worker releases its sequences only where that is better (soft_pools.py). A move is a
handoff whose source decodes: the stream pauses for a step, the copy and three messages, and nothing
is computed again. Without room elsewhere a request stays where it is.
"""

from collections.abc import Callable, Iterator

from coordinator.core.placement.dispatcher import Dispatcher
from coordinator.core.request import Request, State
from coordinator.core.soft_pools import Site, SoftPools
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker

MAX_AT_ONCE = 8
"""Most requests that move away from one worker at a time: the others are decoded meanwhile."""
AGAIN_AFTER_S = 1.0
"""How long a request that stayed where it was is not asked to move again."""


class Moves:
    """Selects the requests to be moved now."""

    def __init__(
        self,
        registry: Registry,
        dispatcher: Dispatcher,
        monotonic: Callable[[], float],
        soft: SoftPools | None = None,
    ) -> None:
        self._registry = registry
        self._dispatcher = dispatcher
        self._monotonic = monotonic
        self._soft = soft

    def due(self) -> Iterator[Request]:
        """The requests to move, oldest first. The caller orders each before it takes the next."""
        for worker in self._registry.all():
            if worker.draining or worker.role == "prefill":
                yield from self._leaving(worker)

    def _leaving(self, worker: Worker) -> Iterator[Request]:
        now = self._monotonic()
        requests = list(worker.load.requests.values())
        num_moving = sum(request.moving for request in requests)
        for request in requests:
            if num_moving >= MAX_AT_ONCE:
                return
            decoded_here = (
                request.state is State.DECODING and request.decode_worker == worker.instance
            )
            if not decoded_here or request.moving or request.quarantined:
                continue
            if now - request.moved_at < AGAIN_AFTER_S:
                continue
            if not self._releases(worker) or self._dispatcher.new_home(request) is None:
                return
            num_moving += 1
            yield request

    def _releases(self, worker: Worker) -> bool:
        """True if the worker's next sequence is to be decoded elsewhere."""
        if worker.draining or self._soft is None:
            return True
        others = self._registry.taking("decode")
        if not others:
            return False
        other = min(others, key=lambda w: w.load.num_sequences)
        ahead = worker.load.tokens_ahead + self._soft.new_tokens(self._dispatcher.num_tokens_queued)
        here = Site(worker.instance, worker.num_decoded, ahead)
        there = Site(other.instance, other.load.num_sequences)
        return self._soft.releases(here, there, self._monotonic())
