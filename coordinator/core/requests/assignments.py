"""Assigns requests to workers and takes them back, with the orders that tell the workers. Pure.

A request is assigned to the worker that computes its prompt; a prefill worker keeps it until it is
told to release the offer. It is assigned to its decode worker until it ends or goes elsewhere. What
is assigned is the worker's load (workers/load.py), and only this file changes that.
"""

from collections.abc import Iterator

from coordinator.core.placement.choice import Place
from coordinator.core.request import Clocks, Request, State
from coordinator.core.requests.faults import Faults
from coordinator.core.requests.outbox import Outbox
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Cancel, Release, ToWorker


class Assignments:
    """Which worker has which request."""

    def __init__(self, registry: Registry, faults: Faults, outbox: Outbox, clocks: Clocks) -> None:
        self._registry = registry
        self._faults = faults
        self._outbox = outbox
        self._clocks = clocks
        self._num_placed = 0

    def compute(self, request: Request, place: Place) -> None:
        """Order a worker to compute the request's tokens."""
        worker, reuse = place
        request.state = State.PREFILLING
        request.prefill_worker = worker.instance
        request.stages["placed_at"] = self._clocks.unix()
        request.prefill_assigned_at = self._clocks.monotonic()
        request.num_expected = reuse.num_tokens
        request.prefix_from = reuse.prefix.instance if reuse.prefix is not None else ""
        if worker.keeps_prefixes and request.shares_prefixes:
            keys = request.prefix_keys(worker.hello)
            page_size = worker.layout.page_size
            num_reused = reuse.num_tokens // page_size
            worker.load.pending_prefixes.add(request.request_id, keys, num_reused)
            if request.attempt == 1:
                request.branch = self._registry.seen.note(keys) * page_size
        order = request.as_prefill if worker.hello.role == "prefill" else request.as_generate
        self._assign(request, worker, order(reuse.prefix))

    def pull(self, request: Request, worker: Worker) -> None:
        """Order a decode worker to pull the request's offer and to continue it."""
        request.forget_prefix_keys()
        request.decode_worker = worker.instance
        request.stages["handoff_placed_at"] = self._clocks.unix()
        worker.load.pending_pulls[request.request_id] = self._clocks.monotonic()
        self._assign(request, worker, request.as_decode())

    def pulled(self, request: Request) -> None:
        """The decode worker has its copy: free the prefill worker's."""
        load = self._registry.require(request.decode_worker).load
        load.pending_pulls.pop(request.request_id, None)
        if self.has_offer(request):
            assert request.offer is not None
            release = Release(request.request_id, request.attempt, request.offer.epoch)
            self._outbox.send(request.prefill_worker, release)
        self.forget_offer(request)

    def recount(self, request: Request) -> None:
        """Count the request again in the load of its workers: it has become longer, or its first
        token arrived."""
        for worker in self._workers_of(request):
            worker.load.recount(request)

    def unassign(self, request: Request, instance: str) -> None:
        """Record that a worker has nothing more to do for the request."""
        worker = self._registry.get(instance)
        if worker is not None:
            worker.load.remove(request)

    def cancel(self, request: Request) -> None:
        """Order the request's workers to end it, and unassign it."""
        for worker in self._workers_of(request):
            self._outbox.send(worker.instance, Cancel(request.request_id, request.attempt))
            worker.load.remove(request)
        request.offer = None

    def has_offer(self, request: Request) -> bool:
        """True if a live prefill worker still keeps the request's finished prompt."""
        here = self._registry.get(request.prefill_worker) is not None
        return request.offer is not None and here

    def forget_offer(self, request: Request) -> None:
        """Record that the prefill worker no longer keeps the request's cache."""
        self.unassign(request, request.prefill_worker)
        request.offer = None

    def _assign(self, request: Request, worker: Worker, order: ToWorker) -> None:
        self._num_placed += 1
        worker.load.last_placed = self._num_placed
        worker.load.add(request)
        request.assigned_at = request.progress_at = self._clocks.monotonic()
        self._outbox.add(*self._faults.placed(request, worker))
        self._outbox.send(worker.instance, order)
        self._outbox.record(request)

    def _workers_of(self, request: Request) -> Iterator[Worker]:
        """The live workers that the request is assigned to."""
        for instance in (request.prefill_worker, request.decode_worker):
            worker = self._registry.get(instance)
            if worker is not None and request.request_id in worker.load.requests:
                yield worker
