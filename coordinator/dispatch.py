"""Requests that wait for a worker, their placing, and their taking back. Pure.

    queue      waits for a worker to compute its tokens
    handoffs   computed and offered; waits for a decode worker

Both are kept in the order of acceptance, whatever the attempt, and nobody is overtaken at the
workers that he waits for: a long request must not starve behind short ones. The head of the queue
may have any worker that can hold it, and holds up all others meanwhile. A handoff waits for the
decode workers that have proved that they can pull from there, and so holds up only those who want
one of the same; while there is none it waits aside.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

from coordinator.placement import (
    PlacementLimits,
    choose_both,
    choose_decode,
    choose_prefill,
    large_enough,
)
from coordinator.registry import Registry, Worker
from coordinator.request import Request, State
from transport.messages import Cancel, Release, ToWorker


class Dispatcher:
    """Places requests and takes them back. ``send`` gives a worker a message, ``changed`` is told
    of each request that was placed; ``clock`` and ``monotonic`` are the lifecycle's."""

    def __init__(
        self,
        registry: Registry,
        limits: PlacementLimits,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        send: Callable[[str, ToWorker], None],
        changed: Callable[[Request], None],
    ) -> None:
        self.queue: list[Request] = []
        self.handoffs: list[Request] = []
        self._registry = registry
        self._limits = limits
        self._clock = clock
        self._monotonic = monotonic
        self._send = send
        self._changed = changed
        self._num_placed = 0

    def enqueue(self, request: Request) -> None:
        """It waits for its tokens to be computed."""
        insort(self.queue, request, key=_arrival)

    def hand_off(self, request: Request) -> None:
        """It waits for a decode worker to pull its offer."""
        insort(self.handoffs, request, key=_arrival)

    def withdraw(self, request: Request) -> None:
        """It waits no longer, if it did."""
        if request.state is State.QUEUED:
            _remove(request, self.queue)
        elif request.state is State.HANDOFF and not request.decode_worker:
            _remove(request, self.handoffs)

    def run(self) -> None:
        """Place whatever can be placed, oldest first."""
        self._run_handoffs()
        while self.queue:
            worker = self._first_worker(self.queue[0])
            if worker is None:
                break
            self._to_first(self.queue.pop(0), worker)

    def unassign(self, request: Request, instance: str) -> None:
        """The worker is no longer responsible for the request."""
        worker = self._registry.get(instance)
        if worker is not None:
            worker.unassign(request)

    def recount(self, request: Request) -> None:
        """It has become longer, or its first token has come: so it needs more memory where it is,
        or fewer tokens are ahead there."""
        for instance in (request.prefill_worker, request.decode_worker):
            worker = self._registry.get(instance)
            if worker is not None and request.request_id in worker.assigned:
                worker.recount(request)

    def take_back(self, request: Request) -> None:
        """Have every worker forget the request, and forget them."""
        self.withdraw(request)
        for instance in (request.prefill_worker, request.decode_worker):
            worker = self._registry.get(instance)
            if worker is not None and request.request_id in worker.assigned:
                self._send(instance, Cancel(request.request_id, request.attempt))
                self.unassign(request, instance)
        request.offer = None

    def release_offer(self, request: Request) -> None:
        """The prefill worker may drop it, unless it already has."""
        if request.offer is not None and self._registry.get(request.prefill_worker):
            generation = request.offer.generation
            release = Release(request.request_id, request.attempt, generation)
            self._send(request.prefill_worker, release)
        self.forget_offer(request)

    def forget_offer(self, request: Request) -> None:
        """The prefill worker has nothing to do with the request any more."""
        self.unassign(request, request.prefill_worker)
        request.offer = None

    def _run_handoffs(self) -> None:
        proved: dict[str, set[str]] = {}  # who can pull from a prefill worker
        spoken_for: set[str] = set()  # an older request waits for room there
        for request in list(self.handoffs):
            prefill = request.prefill_worker
            if prefill not in proved:
                proved[prefill] = self._proved(prefill)
            if proved[prefill] <= spoken_for:
                continue
            workers = self._pullers(request, proved[prefill])
            free = [worker for worker in workers if worker.instance not in spoken_for]
            worker = choose_decode(free, request)
            if worker is None:
                spoken_for.update(worker.instance for worker in workers)
            else:
                _remove(request, self.handoffs)
                self._to_decode(request, worker)

    def _proved(self, prefill: str) -> set[str]:
        taking = self._registry.taking("decode")
        return {w.instance for w in taking if self._registry.pairs.usable(prefill, w.instance)}

    def _pullers(self, request: Request, proved: set[str]) -> list[Worker]:
        """Decode workers that can hold the request and have ``proved`` to read its offer right. Who
        has yet to prove it counts: a smaller one is no substitute for that moment."""
        able = large_enough(self._registry.decoding_from(request.prefill_worker), request.max_len)
        return [worker for worker in able if worker.instance in proved]

    def _first_worker(self, request: Request) -> Worker | None:
        both = self._registry.of("both")
        if both:
            return choose_both(both, request, self._limits)
        return choose_prefill(self._registry.prefilling(), request, self._limits)

    def _to_first(self, request: Request, worker: Worker) -> None:
        request.state = State.PREFILLING
        request.prefill_worker = worker.instance
        request.stages["placed_at"] = self._clock()
        alone = worker.hello.role == "both"
        self._assign(request, worker, request.as_generate() if alone else request.as_prefill())

    def _to_decode(self, request: Request, worker: Worker) -> None:
        request.decode_worker = worker.instance
        request.stages["handoff_placed_at"] = self._clock()
        self._assign(request, worker, request.as_decode())

    def _assign(self, request: Request, worker: Worker, order: ToWorker) -> None:
        self._num_placed += 1
        worker.last_placed = self._num_placed
        worker.assign(request)
        request.assigned_at = self._monotonic()
        self._send(worker.instance, order)
        self._changed(request)


def _arrival(request: Request) -> int:
    return request.arrival


def _remove(request: Request, waiting: list[Request]) -> None:
    at = bisect_left(waiting, request.arrival, key=_arrival)
    assert waiting[at] is request, "a request that waits is listed"
    del waiting[at]
