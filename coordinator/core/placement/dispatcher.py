"""Placement: which request goes to which worker next. Pure.

``Dispatcher`` is the public object of this room. Only requests/ may call it; all other files here
are private. It decides and orders nothing: requests/ assigns a request to the chosen worker before
it asks for the next one.

    queue        Requests that wait for a worker to compute their tokens.
    quarantined  The same, for requests that are placed alone (reservations.py).
    parked       Requests that wait until a worker that is large enough joins again.
    handoffs     Computed and offered requests that wait for a decode worker.

Each list is kept in order of arrival, whatever the attempt, and no request overtakes another one at
the workers that it waits for: a long request must not starve behind short ones. The head of the
queue may have any worker that can hold it, and blocks all requests behind it meanwhile. A request
that avoids workers that it failed at blocks only its other workers. A handoff waits for the decode
workers that have proved that they can pull from its prefill worker, and blocks only handoffs that
wait for the same ones.

choice.py says which workers may have a request, and which of them gets it.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from coordinator.core.placement.choice import (
    Candidates,
    Place,
    choose_decode,
    choose_generate,
    choose_prefill,
)
from coordinator.core.placement.reservations import Reservations
from coordinator.core.placement.reuse import kept_at, reuses_of
from coordinator.core.request import Request, State
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker


class Dispatcher:
    """The waiting requests. ``handoffs`` and ``prompts`` yield what can be placed now; both are
    asked at the end of every event that may change it.

    A worker reserved for a quarantined request gets ``reserve_s`` seconds to finish its other
    requests.
    """

    def __init__(
        self,
        registry: Registry,
        limits: PlacementLimits,
        reserve_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._candidates = Candidates(registry, monotonic)
        self._reservations = Reservations(registry, reserve_s, monotonic)
        self._queue: list[Request] = []
        self._quarantined: list[Request] = []
        self._parked: list[Request] = []
        self._handoffs: list[Request] = []
        self._awaited: set[str] = set()  # decode workers that handoffs still wait for

    @property
    def num_queued(self) -> int:
        return len(self._queue) + len(self._quarantined) + len(self._parked)

    def enqueue(self, request: Request) -> None:
        """Queue a request until a worker computes its tokens."""
        if self._candidates.too_long_for_all(request):
            insort(self._parked, request, key=_arrival)
        elif request.quarantined:
            insort(self._quarantined, request, key=_arrival)
        else:
            insort(self._queue, request, key=_arrival)

    def enqueue_handoff(self, request: Request) -> None:
        """Queue a computed request until a decode worker pulls its offer."""
        insort(self._handoffs, request, key=_arrival)

    def withdraw(self, request: Request) -> None:
        """Remove a request from the queues if it is waiting."""
        if request.state is State.QUEUED:
            for waiting in (self._queue, self._quarantined, self._parked):
                if _find(request, waiting) is not None:
                    _remove(request, waiting)
        elif request.state is State.HANDOFF and not request.decode_worker:
            _remove(request, self._handoffs)

    def forget_worker(self, instance: str) -> None:
        """Drop the reservation of a worker that is gone."""
        self._reservations.forget(instance)

    def overdue(self) -> list[Request]:
        """Requests that a reserved worker should have finished by now, to be retried elsewhere."""
        return self._reservations.overdue()

    def next_puller(self, request: Request) -> Worker | None:
        """The decode worker that would get the request's handoff now, if it has no requests.
        Nothing is reserved: another worker may get it."""
        if self._handoffs or request.quarantined:
            return None
        pullers = self._candidates.to_pull(request, self._candidates.proved(request.prefill_worker))
        idle = [w for w in pullers if not w.load.requests and w.reserved_for is None]
        if not idle:  # look the prompt up only if that matters
            return None
        return choose_decode(idle, request, kept_at(request, self._registry))

    def handoffs(self) -> Iterator[tuple[Request, Worker]]:
        """Yield the handoffs that can be placed, oldest first, each with its decode worker.

        The caller assigns each pair before it takes the next one, and takes ``prompts`` afterwards.
        """
        self._reservations.free_unneeded()
        for request in [r for r in self._parked if not self._candidates.too_long_for_all(r)]:
            _remove(request, self._parked)
            self.enqueue(request)
        self._awaited = set()
        if not self._handoffs:
            return
        decodes = self._registry.of("decode")
        proved: dict[str, set[str]] = {}  # by prefill worker: decode workers that can pull from it
        reserved = {w.instance for w in decodes if w.reserved_for is not None}
        self._awaited = reserved
        for request in list(self._handoffs):
            prefill = request.prefill_worker
            if prefill not in proved:
                proved[prefill] = self._candidates.proved(prefill)
            worker: Worker | None
            if request.quarantined:
                workers = self._candidates.to_pull(request, proved[prefill])
                worker = self._reservations.idle_worker(request, workers)
            elif proved[prefill] <= reserved:
                continue
            else:
                workers = self._candidates.to_pull(request, proved[prefill])
                free = [worker for worker in workers if worker.instance not in reserved]
                worker = choose_decode(free, request, kept_at(request, self._registry))
                if worker is None:
                    reserved.update(worker.instance for worker in workers)
                    if not request.avoided:
                        reserved.update(w.instance for w in decodes if not w.breaker.closed)
            if worker is not None:
                _remove(request, self._handoffs)
                yield request, worker

    def prompts(self) -> Iterator[tuple[Request, Place]]:
        """Yield the queued requests that can be placed, oldest first, each with its place.

        The caller assigns each before it takes the next one. Decode workers that a handoff waits
        for get no prompts.
        """
        for request in list(self._quarantined):
            workers = self._candidates.to_compute(request)
            worker = self._reservations.idle_worker(request, workers)
            if worker is not None and (place := self._choose([worker], request)):
                _remove(request, self._quarantined)
                yield request, place
        reserved = self._awaited  # for older requests
        at = 0
        while at < len(self._queue):
            request = self._queue[at]
            workers = self._candidates.to_compute(request)
            free = [w for w in workers if w.reserved_for is None and w.instance not in reserved]
            place = self._choose(free, request)
            if place is not None:
                del self._queue[at]
                yield request, place
            elif request.avoided:
                reserved.update(worker.instance for worker in workers)
                at += 1
            else:
                break

    def _choose(self, workers: list[Worker], request: Request) -> Place | None:
        if not workers:
            return None
        reuses = reuses_of(request, self._registry)
        if workers[0].hello.role != "prefill":
            return choose_generate(workers, request, self._limits, reuses)
        return choose_prefill(workers, request, self._limits, reuses)


def _arrival(request: Request) -> int:
    return request.arrival


def _find(request: Request, waiting: list[Request]) -> int | None:
    at = bisect_left(waiting, request.arrival, key=_arrival)
    return at if at < len(waiting) and waiting[at] is request else None


def _remove(request: Request, waiting: list[Request]) -> None:
    at = _find(request, waiting)
    assert at is not None, "a waiting request is in its queue"
    del waiting[at]
