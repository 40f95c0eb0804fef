"""Requests that wait for a worker, their placing, and their taking back. Pure.

    queue      waits for a worker to compute its tokens
    suspects   the same, alone (trials.py)
    parked     waits for a worker that is large enough to come back
    handoffs   computed and offered; waits for a decode worker

Tokens are computed by prefill workers, by colocated ones, or, while no prefill worker takes work,
by decode workers, which then go on with the request as a colocated worker does. What was placed
stays where it is when a prefill worker is back.

All are kept in the order of acceptance, whatever the attempt, and no request is overtaken at the
workers that it waits for: a long request must not starve behind short ones. The head of the queue
may have any worker that can hold it, and holds up all others meanwhile; one that avoids workers
that it failed at holds up others at the rest. A handoff waits for the decode workers that have
proved that they can pull from there, and so holds up only handoffs that wait for one of the same;
while there is none it waits aside. faults.py says which workers get requests at all.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

from coordinator.core.faults import Faults
from coordinator.core.placement import (
    Place,
    PlacementLimits,
    choose_decode,
    choose_generate,
    choose_prefill,
    large_enough,
)
from coordinator.core.registry import Registry
from coordinator.core.request import Request, State
from coordinator.core.reuse import kept_at, reuses_of
from coordinator.core.trials import Trials
from coordinator.core.worker import Worker
from transport.wire.messages import Cancel, Expect, Release, ToWorker


class Dispatcher:
    """Places requests and takes them back. ``send`` gives a worker a message at the end of the
    event, or at ``send_orders`` before; ``changed`` is called with each request that was placed;
    ``clock`` and ``monotonic`` are the lifecycle's."""

    def __init__(
        self,
        registry: Registry,
        limits: PlacementLimits,
        faults: Faults,
        trials: Trials,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        send: Callable[[str, ToWorker], None],
        send_orders: Callable[[], None],
        changed: Callable[[Request], None],
    ) -> None:
        self.queue: list[Request] = []
        self.suspects: list[Request] = []
        self.parked: list[Request] = []
        self.handoffs: list[Request] = []
        self._registry = registry
        self._limits = limits
        self._faults = faults
        self._trials = trials
        self._clock = clock
        self._monotonic = monotonic
        self._send = send
        self._send_orders = send_orders
        self._changed = changed
        self._num_placed = 0
        self._computed: list[Request] = []

    @property
    def num_queued(self) -> int:
        return len(self.queue) + len(self.suspects) + len(self.parked)

    def enqueue(self, request: Request) -> None:
        """Queue a request until a worker computes its tokens."""
        if self._too_long_for_all(request):
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
        pullers = self._pullers(request, self._proved(request.prefill_worker))
        idle = [w for w in pullers if not w.assigned and w.reserved_for is None]
        if not idle:  # the prompt is looked up where that matters
            return
        worker = choose_decode(idle, request, kept_at(request, self._registry))
        if worker is not None:
            self._send(worker.instance, Expect())

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
        for request in [r for r in self.parked if not self._too_long_for_all(r)]:
            _remove(request, self.parked)
            self.enqueue(request)
        waited_for = self._run_handoffs()
        # Decode workers are idle until the orders come, and to place the prompts takes as long.
        self._send_orders()
        while self._computed:
            self.recount(self._computed.pop())
        for request in list(self.suspects):
            worker = self._trials.alone(self._first_workers(request), request)
            if worker is not None and (place := self._choose_first([worker], request)):
                _remove(request, self.suspects)
                self._to_first(request, place)
        self._run_queue(waited_for)

    def unassign(self, request: Request, instance: str) -> None:
        """The worker has nothing more to do for the request."""
        worker = self._registry.get(instance)
        if worker is not None:
            worker.unassign(request)

    def recount(self, request: Request) -> None:
        """Count the request anew at its workers: it has become longer, or its first token has
        come."""
        for instance in (request.prefill_worker, request.decode_worker):
            worker = self._registry.get(instance)
            if worker is not None and request.request_id in worker.assigned:
                worker.recount(request)

    def take_back(self, request: Request) -> None:
        """Cancel the request at its workers, and remove it from the queues."""
        self.withdraw(request)
        for instance in (request.prefill_worker, request.decode_worker):
            worker = self._registry.get(instance)
            if worker is not None and request.request_id in worker.assigned:
                self._send(instance, Cancel(request.request_id, request.attempt))
                self.unassign(request, instance)
        request.offer = None

    def has_offer(self, request: Request) -> bool:
        """Whether a live prefill worker still keeps the request's finished prompt."""
        here = self._registry.get(request.prefill_worker) is not None
        return request.offer is not None and here

    def release_offer(self, request: Request) -> None:
        """Tell the prefill worker to free the offered caches, if it still has them."""
        if request.offer is not None and self._registry.get(request.prefill_worker):
            epoch = request.offer.epoch
            release = Release(request.request_id, request.attempt, epoch)
            self._send(request.prefill_worker, release)
        self.forget_offer(request)

    def forget_offer(self, request: Request) -> None:
        """The prefill worker no longer keeps the request's caches."""
        self.unassign(request, request.prefill_worker)
        request.offer = None

    def _run_queue(self, spoken_for: set[str]) -> None:
        """``spoken_for`` are workers that an older request waits for; added are those that one
        which avoids the others waits for."""
        at = 0
        while at < len(self.queue):
            request = self.queue[at]
            workers = self._first_workers(request)
            free = [w for w in workers if w.reserved_for is None and w.instance not in spoken_for]
            place = self._choose_first(free, request)
            if place is not None:
                del self.queue[at]
                self._to_first(request, place)
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
                proved[prefill] = self._proved(prefill)
            worker: Worker | None
            if request.suspect:
                worker = self._trials.alone(self._pullers(request, proved[prefill]), request)
            elif proved[prefill] <= spoken_for:
                continue
            else:
                workers = self._pullers(request, proved[prefill])
                free = [worker for worker in workers if worker.instance not in spoken_for]
                worker = choose_decode(free, request, kept_at(request, self._registry))
                if worker is None:
                    spoken_for.update(worker.instance for worker in workers)
                    if not request.avoided:
                        spoken_for.update(w.instance for w in decodes if not w.breaker.closed)
            if worker is not None:
                _remove(request, self.handoffs)
                self._to_decode(request, worker)
        return spoken_for

    def _proved(self, prefill: str) -> set[str]:
        pairs, taking = self._registry.pairs, self._registry.taking("decode")
        usable = {w.instance for w in taking if pairs.usable(prefill, w.instance)}
        return self._faults.pulling_from(prefill, usable)

    def _pullers(self, request: Request, proved: set[str]) -> list[Worker]:
        """Decode workers that can hold the request and have ``proved`` to read its offer right. One
        that has yet to prove it counts too: until then the request waits rather than take a smaller
        one."""
        able = large_enough(self._registry.decoding_from(request.prefill_worker), request.max_len)
        return self._faults.able([w for w in able if w.instance in proved], request)

    def _first_workers(self, request: Request) -> list[Worker]:
        """Workers that may compute the request's tokens, busy or not."""
        generating = self._registry.of("decode" if self._registry.standing_in() else "colocated")
        if generating:
            return self._faults.able(large_enough(generating, request.max_len), request)
        prefill = large_enough(self._registry.prefilling(), request.num_tokens)
        return self._faults.able(prefill, request)

    def _choose_first(self, workers: list[Worker], request: Request) -> Place | None:
        if not workers:
            return None
        reuses = reuses_of(request, self._registry)
        if workers[0].hello.role != "prefill":
            return choose_generate(workers, request, self._limits, reuses)
        return choose_prefill(workers, request, self._limits, reuses)

    def _too_long_for_all(self, request: Request) -> bool:
        role = request.too_long_for
        if role == "prefill" and self._registry.standing_in():
            role = "decode"
        return role is not None and not self._registry.holds(role, request.needs_len)

    def _to_first(self, request: Request, place: Place) -> None:
        worker, reuse = place
        request.state = State.PREFILLING
        request.prefill_worker = worker.instance
        request.stages["placed_at"] = self._clock()
        request.prefill_assigned_at = self._monotonic()
        request.num_expected = reuse.num_tokens
        request.prefix_from = reuse.prefix.instance if reuse.prefix is not None else ""
        if worker.keeps_prefixes and request.shares_prefixes:
            keys = request.prefix_keys(worker.hello)
            page_size = worker.layout.page_size
            worker.coming.add(request.request_id, keys, reuse.num_tokens // page_size)
            if request.attempt == 1:
                request.branch = self._registry.seen.note(keys) * page_size
        order = request.as_prefill if worker.hello.role == "prefill" else request.as_generate
        self._assign(request, worker, order(reuse.prefix))

    def _to_decode(self, request: Request, worker: Worker) -> None:
        request.forget_prefix_keys()
        request.decode_worker = worker.instance
        request.stages["handoff_placed_at"] = self._clock()
        worker.landing[request.request_id] = self._monotonic()
        self._assign(request, worker, request.as_decode())

    def _assign(self, request: Request, worker: Worker, order: ToWorker) -> None:
        self._num_placed += 1
        worker.last_placed = self._num_placed
        worker.assign(request)
        request.assigned_at = request.progress_at = self._monotonic()
        self._faults.placed(request, worker)
        self._send(worker.instance, order)
        self._changed(request)


def _arrival(request: Request) -> int:
    return request.arrival


def _find(request: Request, waiting: list[Request]) -> int | None:
    at = bisect_left(waiting, request.arrival, key=_arrival)
    return at if at < len(waiting) and waiting[at] is request else None


def _remove(request: Request, waiting: list[Request]) -> None:
    at = _find(request, waiting)
    assert at is not None, "a request that waits is listed"
    del waiting[at]
