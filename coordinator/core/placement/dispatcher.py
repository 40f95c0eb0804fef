"""Placement: which request goes to which worker next. Pure.

``Dispatcher`` is the public object of this room. Only requests/ may call it; all other files here
are private. It decides and orders nothing: requests/ assigns a request to the chosen worker before
it asks for the next one.

    queue        Requests that wait for a worker to compute their tokens, by key (fair_queue.py).
    quarantined  The same, for requests that are placed alone (reservations.py).
    parked       Requests that wait until a worker that is large enough joins again.
    handoffs     Computed and offered requests that wait for a decode worker.

Each list is kept in order of arrival, whatever the attempt, and no request overtakes another one of
its key at the workers that it waits for: a long request must not starve behind short ones. The head
of the queue may have any worker that can hold it, and blocks all requests behind it meanwhile,
except those of keys that are below their share (shares.py). A request that avoids workers that it
failed at blocks only its other workers. A handoff waits for the decode workers that have proved
that they can pull from its prefill worker, and blocks only handoffs that wait for the same ones.

choice.py says which workers may have a request, and which of them gets it. With soft pools a decode
worker may get a prompt, and a prefill worker decode (border.py). A prompt for a worker that decodes
may wait for others, and blocks the queue meanwhile.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence

from coordinator.core.placement.border import Border, SoftBorder
from coordinator.core.placement.choice import (
    Candidates,
    Place,
    choose_decode,
    choose_generate,
    choose_prefill,
    has_room_for,
    without,
)
from coordinator.core.placement.fair_queue import FairQueue
from coordinator.core.placement.reservations import Reservations
from coordinator.core.placement.reuse import kept_at, reuses_of
from coordinator.core.placement.shares import Shares, in_turn
from coordinator.core.request import Request, State
from coordinator.core.settings import PlacementLimits
from coordinator.core.soft_pools import SoftPools
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
        soft: SoftPools | None = None,
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._monotonic = monotonic
        self._candidates = Candidates(registry, monotonic)
        self._border = Border()
        if soft is not None:
            self._border = SoftBorder(soft, registry, self._candidates, limits, monotonic)
        self._reservations = Reservations(registry, reserve_s, monotonic)
        self._queue = FairQueue()
        self._denied: tuple[Request, list[Worker]] | None = None
        """A request that found no room at these workers though its key is below its share."""
        self._favoured: Request | None = None
        """A queued request that others have made room for."""
        self._quarantined: list[Request] = []
        self._parked: list[Request] = []
        self._handoffs: list[Request] = []
        self._awaited: set[str] = set()  # decode workers that handoffs still wait for
        self._gathered_from: float | None = None
        """Since when the oldest prompt waits that is gathered with others; None without."""

    @property
    def num_queued(self) -> int:
        return len(self._queue) + len(self._quarantined) + len(self._parked)

    @property
    def num_tokens_queued(self) -> int:
        """Tokens of the requests that wait for a worker to compute them."""
        return self._queue.num_tokens

    def enqueue(self, request: Request) -> None:
        """Queue a request until a worker computes its tokens."""
        if self._candidates.too_long_for_all(request):
            insort(self._parked, request, key=_arrival)
        elif request.quarantined:
            insort(self._quarantined, request, key=_arrival)
        else:
            self._queue.add(request)

    def enqueue_handoff(self, request: Request) -> None:
        """Queue a computed request until a decode worker pulls its offer."""
        insort(self._handoffs, request, key=_arrival)

    def withdraw(self, request: Request) -> None:
        """Remove a request from the queues if it is waiting."""
        if request.state is State.QUEUED:
            self._queue.remove(request)
            for waiting in (self._quarantined, self._parked):
                if _find(request, waiting) is not None:
                    _remove(request, waiting)
        elif request.state is State.HANDOFF and not request.decode_worker:
            _remove(request, self._handoffs)

    def forget_worker(self, instance: str) -> None:
        """Drop the reservation of a worker that is gone."""
        self._reservations.forget(instance)

    def roles_changed(self) -> None:
        """Others will get the next prompts."""
        self._border.roles_changed()

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

    def move_target(self, request: Request) -> Worker | None:
        """The worker that has room for a request that is being decoded, to which it would move now.
        None while older requests wait for a worker."""
        if self._handoffs:
            return None
        pullers = self._candidates.to_move_to(request)
        return choose_decode(pullers, request, kept_at(request, self._registry))

    def taker(self, request: Request, num_moving: int = 0) -> Worker | None:
        """The prefill worker without prompts that is to decode a request of a decode worker.
        ``num_moving``: requests that are about to move there before it."""
        return None if self._queue else self._border.taker(request, num_moving)

    def releases(self, worker: Worker) -> bool:
        """True if a prefill worker's next sequence is to be decoded elsewhere."""
        return self._border.releases(worker, self._queue.num_tokens)

    def has_gathered(self) -> bool:
        """True if a prompt has waited for others as long as it may. Its worker decodes: ask when
        the tokens of a step come."""
        if self._gathered_from is None:
            return False
        return self._monotonic() - self._gathered_from >= self._border.gather_s

    def handoffs(self) -> Iterator[tuple[Request, Worker]]:
        """Yield the handoffs that can be placed, in order, each with its decode worker.

        The caller assigns each pair before it takes the next one, and takes ``prompts`` afterwards.
        """
        self._reservations.free_unneeded()
        for request in [r for r in self._parked if not self._candidates.too_long_for_all(r)]:
            _remove(request, self._parked)
            self.enqueue(request)
        self._awaited = set()
        self._denied = None
        if not self._handoffs:
            return
        decodes = [w for w in self._registry.all() if w.role != "prefill"]
        self._awaited = {w.instance for w in decodes if w.reserved_for is not None}
        proved: dict[str, set[str]] = {}  # by prefill worker: decode workers that can pull from it
        for request in in_turn(self._handoffs, decodes):
            prefill = request.prefill_worker
            if prefill not in proved:
                proved[prefill] = self._candidates.proved(prefill)
            worker = self._puller(request, proved[prefill])
            if worker is not None:
                _remove(request, self._handoffs)
                yield request, worker

    def prompts(self) -> Iterator[tuple[Request, Place]]:
        """Yield the queued requests that can be placed, in order, each with its place.

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
        skipped: set[Request] = set()
        blocked: set[str] = set()  # keys
        filled: set[str] = set()  # workers that get what was gathered
        self._gathered_from = None
        favoured, self._favoured = self._favoured, None
        # By now it may have been placed, or retried and quarantined.
        if favoured is not None and favoured in self._queue:
            yield from self._place(favoured, reserved)
        while (first := self._queue.next(skipped, blocked)) is not None:
            request, key = first, first.spec.key
            workers = self._candidates.to_compute(request)
            if blocked and not Shares(workers, self._waiting()).below(key):
                blocked.add(key)
                continue
            free = without(workers, reserved)
            num_queued = self._queue.num_tokens
            place = self._border.helper(request, workers, reserved, num_queued)
            if place is None:
                place = self._choose(free, request)
            if place is not None:
                is_first = place.worker.instance not in filled
                if is_first and self._border.gathers(place.worker, request, num_queued):
                    self._gathered_from = request.progress_at
                    return
                filled.update(each.instance for each in self._border.sharing(place.worker))
                self._note_placed(place, request)
                yield request, place
            elif request.avoided:
                reserved.update(worker.instance for worker in workers)
                skipped.add(request)
            else:
                self._deny(request, free)
                blocked.add(key)

    def victims(self) -> list[Request]:
        """Placed requests that have to make room for one that was not placed. The caller queues
        them again, and asks ``handoffs``."""
        if self._denied is None:
            return []
        (request, workers), self._denied = self._denied, None

        def fits(worker: Worker, without: Sequence[Request]) -> bool:
            return has_room_for(worker, request, self._limits, without)

        victims = Shares(workers, self._waiting()).victims(fits)
        if victims:
            request.made_room = request.state
            self._favoured = request
        return victims

    def _puller(self, request: Request, proved: set[str]) -> Worker | None:
        """The worker that pulls a handoff now, among those that have ``proved`` that they can. If
        there is none, the handoff waits for them, and younger requests for other workers."""
        placed_alone, awaited = request.quarantined, self._awaited
        if proved <= awaited and not (placed_alone or request.moving):
            return None  # before the prompt is looked up
        workers = self._candidates.to_pull(request, proved)
        if placed_alone:
            return self._reservations.idle_worker(request, workers)
        free = [
            worker
            for worker in workers
            if worker.instance not in awaited and not (request.moving and worker.draining)
        ]
        chosen = choose_decode(free, request, kept_at(request, self._registry))
        chosen = self._border.keeper(request, chosen) or chosen
        if request.moving:
            stays = self._registry.get(request.prefill_worker)
            return self.taker(request) or chosen or stays
        if chosen is None:
            self._deny(request, free)
            awaited.update(worker.instance for worker in workers)
            if not request.avoided:
                every = self._registry.all()
                awaited.update(
                    w.instance for w in every if w.role != "prefill" and not w.breaker.closed
                )
        return chosen

    def _waiting(self) -> dict[str, int]:
        """The weights of the keys that have requests or handoffs waiting."""
        return self._queue.weights | {r.spec.key: r.spec.weight for r in self._handoffs}

    def _place(self, request: Request, reserved: set[str]) -> Iterator[tuple[Request, Place]]:
        """The request with its place, if it has one now."""
        place = self._choose(without(self._candidates.to_compute(request), reserved), request)
        if place is not None:
            self._note_placed(place, request)
            yield request, place

    def _note_placed(self, place: Place, request: Request) -> None:
        num_computed = request.num_tokens - place.reuse.num_tokens
        self._queue.placed(request, num_computed)
        self._border.note_prompt(place.worker, num_computed)

    def _deny(self, request: Request, workers: list[Worker]) -> None:
        """Note a request that found no room at ``workers``, if its key is below its share."""
        if self._denied is None and request.made_room is not request.state:
            below = Shares(workers, self._waiting()).below(request.spec.key)
            self._denied = (request, workers) if below else None

    def _choose(self, workers: list[Worker], request: Request) -> Place | None:
        if not workers:
            return None
        reuses = reuses_of(request, self._registry)
        if workers[0].role != "prefill":
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
