"""Moves: which requests that are being decoded go on at another worker. Pure.

    drain    The worker drains, so it ends in a second instead of with its longest answer.
    role     It has become a prefill worker.
    pools    With soft pools the worker of the other role is the better place (soft_pools.py): a
             decode worker, or a prefill worker without prompts.
    memory   Its sequences are about to have no pages. The youngest, which would be preempted, goes
             to a worker that has many.
    balance  Another worker of its role has much less to decode (balance.py). The youngest move.

A move is a handoff whose source decodes: the stream pauses for a step, the copy and three messages.
Nothing is computed again. Without room elsewhere a request stays where it is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from coordinator.core.placement.dispatcher import Dispatcher
from coordinator.core.request import Request, State
from coordinator.core.requests.balance import Balance, request_gains, weight
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Role

MAX_AT_ONCE = 8
"""Most requests that move away from one worker at a time: the others are decoded meanwhile."""
AGAIN_AFTER_S = 1.0
"""How long a request that was asked to move is not asked again. One whose worker must be rid of it
is asked at once, unless it has just stayed there for lack of room elsewhere."""
LOOK_S = 0.02
"""How often it is looked, at most, whether a worker's sequences that run out of pages can move."""
MAX_TO_BALANCE = 2
"""Most requests that move away from a worker at a time so that others have as many, while each has
some."""
ROOM_FACTOR = 2
"""How many times the ``headroom`` of its sequences a worker has free to which a request moves for
lack of pages, so that it does not soon move back."""
Reason = Literal["drain", "role", "pools", "memory", "balance"]
ANNOUNCED: frozenset[Reason] = frozenset({"drain", "role"})
"""Moves of all sequences of a worker. The target is told of these beforehand, so that the streams
pause for a step less. Its own steps take a little longer meanwhile: other moves come too often."""
Chosen = Iterator[tuple[Request, Worker]]
"""Requests that are to move, each with the worker to which it would move now."""


class Moves:
    """Selects the requests to be moved now."""

    def __init__(
        self,
        registry: Registry,
        dispatcher: Dispatcher,
        monotonic: Callable[[], float],
        *,
        pools_are_soft: bool = False,
    ) -> None:
        self._registry = registry
        self._dispatcher = dispatcher
        self._monotonic = monotonic
        self._pools_are_soft = pools_are_soft
        self._balances: dict[Role, Balance] = {"decode": Balance(), "colocated": Balance()}

    def due(self) -> Iterator[tuple[Request, Reason, Worker]]:
        """The requests to move, and why. The caller orders each before it takes the next."""
        for worker in self._registry.all():
            reason: Reason = "pools" if self._pools_are_soft else "role"
            if worker.draining or worker.role == "prefill":
                for request, to in self._leaving(worker):
                    yield request, "drain" if worker.draining else reason, to
                continue
            if worker.load.is_short_of_pages:
                for request, to in self._relieving(worker):
                    yield request, "memory", to
            if self._pools_are_soft and worker.role == "decode":
                for request, to in self._taken(worker):
                    yield request, "pools", to
        now = self._monotonic()
        for role, balance in self._balances.items():
            workers = self._registry.taking(role)
            weights = {worker.instance: weight(worker) for worker in workers}
            if fuller := balance.uneven(weights, now):
                for request, to in self._evening(fuller, workers):
                    yield request, "balance", to

    def may_relieve(self, worker: Worker) -> bool:
        """True if a worker is short of pages, and nothing has been looked for since a moment ago.
        Each step of a full worker asks."""
        if not worker.load.is_short_of_pages:
            return False
        now = self._monotonic()
        due = now - worker.short_seen_at >= LOOK_S
        if due:
            worker.short_seen_at = now
        return due

    def _leaving(self, worker: Worker) -> Chosen:
        """What a worker is to be rid of, oldest first."""
        num_moving = len(_moving(worker))
        must_leave = worker.draining or not self._pools_are_soft
        for request in self._movable(worker, must_leave=must_leave):
            if num_moving >= MAX_AT_ONCE:
                return
            releases = worker.draining or self._dispatcher.releases(worker)
            target = self._dispatcher.move_target(request) if releases else None
            if target is None:
                return
            num_moving += 1
            yield request, target

    def _taken(self, worker: Worker) -> Chosen:
        """What a prefill worker without prompts takes over, youngest first."""
        others = self._registry.takers_from(worker.instance)
        if all(other.load.tokens_ahead for other in others):  # before the requests are sorted
            return
        num_moving = len(_moving(worker))
        for request in sorted(self._movable(worker), key=_arrival, reverse=True):
            if num_moving >= MAX_AT_ONCE:
                return
            taker = self._dispatcher.taker(request, num_moving)
            if taker is None:
                return
            num_moving += 1
            yield request, taker

    def _relieving(self, worker: Worker) -> Chosen:
        """What gives the other sequences of a worker pages, youngest first, as preemption would."""
        if not worker.breaker.closed:
            return
        layout, load = worker.layout, worker.load
        moving = _moving(worker)
        num_free = load.free_pages + sum(layout.pages_for(r.num_tokens + 1) for r in moving)
        num_staying = load.num_sequences - len(moving)
        for request in sorted(self._movable(worker), key=_arrival, reverse=True):
            target = self._dispatcher.move_target(request)
            if target is None or num_free >= load.headroom * num_staying:
                return
            num_pages = layout.pages_for(request.num_tokens + 1)
            kept_free = ROOM_FACTOR * target.load.headroom * (target.load.num_sequences + 1)
            if target.load.free_pages - num_pages >= kept_free:
                yield request, target
                num_free, num_staying = num_free + num_pages, num_staying - 1

    def _evening(self, fuller: Sequence[str], workers: Sequence[Worker]) -> Chosen:
        """What another one of ``workers`` decodes in less time than one of the ``fuller`` among
        them, youngest first."""
        most = MAX_TO_BALANCE if all(map(weight, workers)) else MAX_AT_ONCE
        num_coming = sum(len(_moving(worker)) for worker in workers)  # not counted at their targets
        for worker in workers:
            if (
                worker.instance not in fuller
                or not worker.breaker.closed
                or worker.reserved_for is not None
            ):
                continue
            num_moving = len(_moving(worker))
            for request in sorted(self._movable(worker), key=_arrival, reverse=True):
                target = self._dispatcher.move_target(request) if num_moving < most else None
                if target is None:
                    break
                if not request_gains(
                    request, weight(worker) - num_moving, weight(target) + num_coming
                ):
                    break
                num_moving, num_coming = num_moving + 1, num_coming + 1
                yield request, target

    def _movable(self, worker: Worker, *, must_leave: bool = False) -> list[Request]:
        """The requests decoded at a worker that may be asked to move, oldest first."""
        now = self._monotonic()
        return [
            request
            for request in worker.load.requests.values()
            if request.state is State.DECODING
            and request.decode_worker == worker.instance
            and not (request.moving or request.quarantined)
            and now - (request.stayed_at if must_leave else request.moved_at) >= AGAIN_AFTER_S
        ]


def _moving(worker: Worker) -> list[Request]:
    return [request for request in worker.load.requests.values() if request.moving]


def _arrival(request: Request) -> int:
    return request.arrival
