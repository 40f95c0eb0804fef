"""Requests that wait for a worker, and the order in which they are placed. Pure.

    queue      waits for a worker to compute its tokens
    suspects   the same, alone (trials.py)
    parked     waits for a worker that is large enough to come back
    handoffs   computed and offered; waits for a decode worker

All are kept in the order of acceptance, whatever the attempt, and no request is overtaken at the
workers that it waits for: a long request must not starve behind short ones. The head of the queue
may have any worker that can hold it, and holds up all others meanwhile; one that avoids workers
that it failed at holds up others at the rest. A handoff waits for the decode workers that have
proved that they can pull from there, and so holds up only handoffs that wait for one of the same;
while there is none it waits aside.

candidates.py says which workers may have a request, placement.py which of these gets it, and
assignments.py has the orders.
"""

from bisect import bisect_left, insort

from coordinator.core.assignments import Assignments
from coordinator.core.candidates import Candidates
from coordinator.core.effects import Outbox
from coordinator.core.placement import (
    Place,
    PlacementLimits,
    choose_decode,
    choose_generate,
    choose_prefill,
)
from coordinator.core.registry import Registry
from coordinator.core.request import Request, State
from coordinator.core.reuse import kept_at, reuses_of
from coordinator.core.trials import Trials
from coordinator.core.worker import Worker
from transport.wire.messages import ExpectHandoff


class Dispatcher:
    """The waiting requests; ``run`` places those that can be placed, at the end of every event that
    may change that."""

    def __init__(
        self,
        registry: Registry,
        limits: PlacementLimits,
        candidates: Candidates,
        assignments: Assignments,
        trials: Trials,
        outbox: Outbox,
    ) -> None:
        self.queue: list[Request] = []
        self.suspects: list[Request] = []
        self.parked: list[Request] = []
        self.handoffs: list[Request] = []
        self._registry = registry
        self._limits = limits
        self._candidates = candidates
        self._assignments = assignments
        self._trials = trials
        self._outbox = outbox
        self._computed: list[Request] = []

    @property
    def num_queued(self) -> int:
        return len(self.queue) + len(self.suspects) + len(self.parked)

    def enqueue(self, request: Request) -> None:
        """Queue a request until a worker computes its tokens."""
        if self._candidates.too_long_for_all(request):
            insort(self.parked, request, key=_arrival)
        elif request.suspect:
            insort(self.suspects, request, key=_arrival)
        else:
            insort(self.queue, request, key=_arrival)

    def hand_off(self, request: Request) -> None:
        """Queue a request until a decode worker pulls its offer. ``run`` recounts it."""
        insort(self.handoffs, request, key=_arrival)
        self._computed.append(request)

    def announce(self, request: Request) -> None:
        """Tell the decode worker that would get the request now, if it has nothing to compute, to
        be ready for it: nothing is reserved, and it may become another one."""
        if self.handoffs or request.suspect:
            return
        pullers = self._candidates.to_pull(request, self._candidates.proved(request.prefill_worker))
        idle = [w for w in pullers if not w.assigned and w.reserved_for is None]
        if not idle:  # the prompt is looked up where that matters
            return
        worker = choose_decode(idle, request, kept_at(request, self._registry))
        if worker is not None:
            self._outbox.send(worker.instance, ExpectHandoff())

    def withdraw(self, request: Request) -> None:
        """Remove a request from the queues, if it waits."""
        if request.state is State.QUEUED:
            for waiting in (self.queue, self.suspects, self.parked):
                if _find(request, waiting) is not None:
                    _remove(request, waiting)
        elif request.state is State.HANDOFF and not request.decode_worker:
            _remove(request, self.handoffs)

    def run(self) -> None:
        """Place all requests that can be placed, oldest first."""
        self._trials.free_reservations()
        for request in [r for r in self.parked if not self._candidates.too_long_for_all(r)]:
            _remove(request, self.parked)
            self.enqueue(request)
        waited_for = self._run_handoffs()
        # Decode workers are idle until the orders come, and to place the prompts takes as long.
        self._outbox.send_orders()
        while self._computed:
            self._assignments.recount(self._computed.pop())
        for request in list(self.suspects):
            worker = self._trials.alone(self._candidates.to_compute(request), request)
            if worker is not None and (place := self._choose([worker], request)):
                _remove(request, self.suspects)
                self._assignments.compute(request, place)
        self._run_queue(waited_for)

    def _run_queue(self, spoken_for: set[str]) -> None:
        """``spoken_for`` are workers that an older request waits for; added are those that one
        which avoids the others waits for."""
        at = 0
        while at < len(self.queue):
            request = self.queue[at]
            workers = self._candidates.to_compute(request)
            free = [w for w in workers if w.reserved_for is None and w.instance not in spoken_for]
            place = self._choose(free, request)
            if place is not None:
                del self.queue[at]
                self._assignments.compute(request, place)
            elif request.avoided:
                spoken_for.update(worker.instance for worker in workers)
                at += 1
            else:
                break

    def _run_handoffs(self) -> set[str]:
        """Returns the decode workers that are reserved, or that a handoff waits for room at."""
        if not self.handoffs:
            return set()
        decodes = self._registry.of("decode")
        proved: dict[str, set[str]] = {}  # decode workers that can pull from a prefill worker
        # Reserved, or an older request waits for room there.
        spoken_for = {w.instance for w in decodes if w.reserved_for is not None}
        for request in list(self.handoffs):
            prefill = request.prefill_worker
            if prefill not in proved:
                proved[prefill] = self._candidates.proved(prefill)
            worker: Worker | None
            if request.suspect:
                workers = self._candidates.to_pull(request, proved[prefill])
                worker = self._trials.alone(workers, request)
            elif proved[prefill] <= spoken_for:
                continue
            else:
                workers = self._candidates.to_pull(request, proved[prefill])
                free = [worker for worker in workers if worker.instance not in spoken_for]
                worker = choose_decode(free, request, kept_at(request, self._registry))
                if worker is None:
                    spoken_for.update(worker.instance for worker in workers)
                    if not request.avoided:
                        spoken_for.update(w.instance for w in decodes if not w.breaker.closed)
            if worker is not None:
                _remove(request, self.handoffs)
                self._assignments.pull(request, worker)
        return spoken_for

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
    assert at is not None, "a request that waits is listed"
    del waiting[at]
