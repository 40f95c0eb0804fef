"""Which requests each worker has: the orders that place a request and that take it back. Pure.

A request is assigned to the worker that computes its prompt, a prefill worker until it is told to
release the offer, and to its decode worker until it ends or goes elsewhere. worker.py counts from
that what a worker has to do, and how much of its memory is taken.
"""

from collections.abc import Callable, Iterator

from coordinator.core.effects import Outbox
from coordinator.core.placement.choice import Place
from coordinator.core.request import Request, State
from coordinator.core.requests.faults import Faults
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Cancel, Release, ToWorker


class Assignments:
    """Assigns requests to workers and takes them back; orders go to ``outbox``. ``clock`` and
    ``monotonic`` are the lifecycle's."""

    def __init__(
        self,
        registry: Registry,
        faults: Faults,
        outbox: Outbox,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._faults = faults
        self._outbox = outbox
        self._clock = clock
        self._monotonic = monotonic
        self._num_placed = 0

    def compute(self, request: Request, place: Place) -> None:
        """Order a worker to compute the request's tokens."""
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
            worker.load.pending_prefixes.add(
                request.request_id, keys, reuse.num_tokens // page_size
            )
            if request.attempt == 1:
                request.branch = self._registry.seen.note(keys) * page_size
        order = request.as_prefill if worker.hello.role == "prefill" else request.as_generate
        self._assign(request, worker, order(reuse.prefix))

    def pull(self, request: Request, worker: Worker) -> None:
        """Order a decode worker to pull the request's offer and to go on."""
        request.forget_prefix_keys()
        request.decode_worker = worker.instance
        request.stages["handoff_placed_at"] = self._clock()
        worker.load.pending_pulls[request.request_id] = self._monotonic()
        self._assign(request, worker, request.as_decode())

    def recount(self, request: Request) -> None:
        """Count the request anew at its workers: it has become longer, or its first token has
        come."""
        for worker in self._workers_of(request):
            worker.load.recount(request)

    def unassign(self, request: Request, instance: str) -> None:
        """The worker has nothing more to do for the request."""
        worker = self._registry.get(instance)
        if worker is not None:
            worker.load.remove(request)

    def cancel(self, request: Request) -> None:
        """Tell the request's workers to end it, and unassign it."""
        for worker in self._workers_of(request):
            self._outbox.send(worker.instance, Cancel(request.request_id, request.attempt))
            worker.load.remove(request)
        request.offer = None

    def has_offer(self, request: Request) -> bool:
        """Whether a live prefill worker still keeps the request's finished prompt."""
        here = self._registry.get(request.prefill_worker) is not None
        return request.offer is not None and here

    def release_offer(self, request: Request) -> None:
        """Tell the prefill worker to free the offered caches, if it still has them."""
        if request.offer is not None and self._registry.get(request.prefill_worker):
            release = Release(request.request_id, request.attempt, request.offer.epoch)
            self._outbox.send(request.prefill_worker, release)
        self.forget_offer(request)

    def forget_offer(self, request: Request) -> None:
        """The prefill worker no longer keeps the request's caches."""
        self.unassign(request, request.prefill_worker)
        request.offer = None

    def _assign(self, request: Request, worker: Worker, order: ToWorker) -> None:
        self._num_placed += 1
        worker.load.last_placed = self._num_placed
        worker.load.add(request)
        request.assigned_at = request.progress_at = self._monotonic()
        self._faults.placed(request, worker)
        self._outbox.send(worker.instance, order)
        self._outbox.record(request)

    def _workers_of(self, request: Request) -> Iterator[Worker]:
        """Those that it is assigned to."""
        for instance in (request.prefill_worker, request.decode_worker):
            worker = self._registry.get(instance)
            if worker is not None and request.request_id in worker.load.requests:
                yield worker
