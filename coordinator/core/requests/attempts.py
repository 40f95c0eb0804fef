"""Attempts: the steps of a request from the queue to its end, and the orders to its workers. Pure.

lifecycle.py says which event leads to which step, and failures.py what follows when an attempt
fails. A request is assigned to the worker that computes its prompt; a prefill worker keeps it until
it is told to release the offer. It is assigned to its decode worker until it ends or goes
elsewhere. What is assigned is the worker's load (workers/load.py), and only this file changes that.
"""

from collections.abc import Iterator

from coordinator.core.effects import Crossed, Emit, Ended, Moved, Outbox
from coordinator.core.placement.choice import Place
from coordinator.core.placement.dispatcher import Dispatcher
from coordinator.core.placement.shares import rank_at
from coordinator.core.request import Clocks, Request, State
from coordinator.core.requests.faults import Faults
from coordinator.core.requests.moves import ANNOUNCED, Reason
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Cancel, ExpectHandoff, Move, Release, TokenOut, ToWorker
from transport.wire.offers import Offer


class Attempts:
    """The open requests, and which worker has which of them."""

    def __init__(
        self,
        registry: Registry,
        dispatcher: Dispatcher,
        faults: Faults,
        outbox: Outbox,
        clocks: Clocks,
    ) -> None:
        self.requests: dict[str, Request] = {}
        self._registry = registry
        self._dispatcher = dispatcher
        self._faults = faults
        self._outbox = outbox
        self._clocks = clocks
        self._num_placed = 0

    def begin(self, request: Request) -> None:
        """Queue a request, for the first time or again."""
        self.requests[request.request_id] = request
        request.begin_attempt(self._clocks.unix())
        request.progress_at = self._clocks.monotonic()
        self._dispatcher.enqueue(request)
        self._outbox.record(request)

    def compute(self, request: Request, place: Place) -> None:
        """Order a worker to compute the request's tokens."""
        worker, reuse = place
        request.state = State.PREFILLING
        request.prefill_worker = worker.instance
        request.stages["placed_at"] = self._clocks.unix()
        request.prefill_assigned_at = self._clocks.monotonic()
        request.rank = rank_at(worker, request)
        request.num_expected = reuse.num_tokens
        request.prefix_from = reuse.prefix.instance if reuse.prefix is not None else ""
        if worker.keeps_prefixes and request.shares_prefixes:
            keys = request.prefix_keys(worker.hello)
            page_size = worker.layout.page_size
            num_reused = reuse.num_tokens // page_size
            worker.load.pending_prefixes.add(request.request_id, keys, num_reused)
            if request.attempt == 1:
                request.branch = self._registry.seen.note(keys) * page_size
        if worker.role == "decode":
            self._outbox.add(Crossed(request, "prompt"))
        order = request.as_prefill if worker.role == "prefill" else request.as_generate
        self._assign(request, worker, order(reuse.prefix))

    def pull(self, request: Request, worker: Worker) -> None:
        """Order a decode worker to pull the request's offer and to continue it."""
        request.forget_prefix_keys()
        request.decode_worker = worker.instance
        if worker.role == "prefill":
            self._outbox.add(Crossed(request, "sequence"))
        if not request.moving:
            request.stages["handoff_placed_at"] = self._clocks.unix()
        worker.load.pending_pulls[request.request_id] = self._clocks.monotonic()
        self._assign(request, worker, request.as_decode())

    def emit(self, request: Request, token: TokenOut) -> bool:
        """Stream a request's next token, which may be its last one. Returns False for a token that
        is not the next one: it is stale."""
        if token.index != len(request.output_ids):
            return False
        if "first_token_at" not in request.stages:
            request.stages["first_token_at"] = self._clocks.unix()
        last = token.finish is not None
        self._outbox.add(Emit(request, request.take_token(token)))
        request.progress_at = self._clocks.monotonic()
        self._outbox.add(*self._faults.got_token(request))
        if not request.decoded and (last or request.state is State.DECODING):
            self._outbox.add(*self._faults.succeeded(request))
        if last:
            request.finish_reason = token.finish
            for instance in (request.prefill_worker, request.decode_worker):
                self.unassign(request, instance)
            self._end(request, State.FINISHED)
        elif request.state is State.DECODING:
            self.recount(request)
        return True

    def after_prefill(self, request: Request, offer: Offer | None) -> None:
        """Hand a computed prompt off, or continue it at the same worker if there is no offer."""
        if offer is None:
            request.decode_worker = request.prefill_worker
            request.state = State.DECODING
            request.forget_prefix_keys()
            self.recount(request)
        else:
            request.offer = offer
            request.state = State.HANDOFF
            self._dispatcher.enqueue_handoff(request)
        self._outbox.record(request)

    def move(self, request: Request, reason: Reason, to: Worker) -> None:
        """Order a request's worker to offer it to another one, probably to ``to``."""
        request.moving, request.moved_at = True, self._clocks.monotonic()
        request.move_reason = reason
        self._outbox.send(request.decode_worker, Move(request.request_id, request.attempt))
        if reason in ANNOUNCED:
            self._outbox.send(to.instance, ExpectHandoff())

    def after_settling(self, request: Request, offer: Offer) -> None:
        """Queue the handoff of a request that is decoded no further where it was."""
        request.prefill_worker, request.decode_worker = request.decode_worker, ""
        request.offer, request.decoded = offer, False
        request.state = State.HANDOFF  # recorded when it is decoded again
        self._dispatcher.enqueue_handoff(request)

    def after_pull(self, request: Request) -> None:
        """Continue a request whose decode worker has pulled the offer, and release the offer."""
        stayed = request.decode_worker == request.prefill_worker
        if request.moving:
            request.moving = False
            request.num_moves += not stayed
            seconds = self._clocks.monotonic() - request.moved_at
            self._outbox.add(Moved(request, request.move_reason, stayed, seconds))
        request.state = State.DECODING
        request.progress_at = self._clocks.monotonic()
        load = self._registry.require(request.decode_worker).load
        load.pending_pulls.pop(request.request_id, None)
        if stayed:
            request.offer, request.stayed_at = None, request.progress_at
        else:
            if request.offer is not None and self.has_offer(request):
                release = Release(request.request_id, request.attempt, request.offer.epoch)
                self._outbox.send(request.prefill_worker, release)
            self.forget_offer(request)
        self._outbox.record(request)

    def leave_decode_worker(self, request: Request) -> None:
        """Queue the handoff of an offered request again."""
        self.unassign(request, request.decode_worker)
        request.decode_worker = ""
        request.progress_at = self._clocks.monotonic()
        self._dispatcher.enqueue_handoff(request)
        self._outbox.record(request)

    def finish(self, request: Request) -> None:
        """End a request whose text is complete, though its worker would continue."""
        self.take_back(request)
        request.finish_reason = "stop"
        self._end(request, State.FINISHED)

    def cancel(self, request: Request) -> None:
        self.take_back(request)
        self._end(request, State.CANCELLED)

    def fail(self, request: Request, code: str, message: str) -> None:
        self.take_back(request)
        self._end(request, State.FAILED, code, message)

    def take_back(self, request: Request) -> None:
        """End the attempt: the request leaves the queues, and its workers are ordered to end it."""
        self._dispatcher.withdraw(request)
        for worker in self._workers_of(request):
            self._outbox.send(worker.instance, Cancel(request.request_id, request.attempt))
            worker.load.remove(request)
        request.offer = None

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

    def has_offer(self, request: Request) -> bool:
        """True if a live prefill worker still keeps the request's finished prompt. One that was
        away and is back under its name keeps nothing."""
        worker = self._registry.get(request.prefill_worker)
        keeps = worker is not None and request.request_id in worker.load.requests
        return request.offer is not None and keeps

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

    def _end(self, request: Request, state: State, code: str = "", message: str = "") -> None:
        request.state = state
        request.code, request.message = code, message
        request.stages["ended_at"] = self._clocks.unix()
        del self.requests[request.request_id]
        self._faults.forget(request)
        self._outbox.record(request)
        self._outbox.add(Ended(request))

    def _workers_of(self, request: Request) -> Iterator[Worker]:
        """The live workers that the request is assigned to."""
        for instance in (request.prefill_worker, request.decode_worker):
            worker = self._registry.get(instance)
            if worker is not None and request.request_id in worker.load.requests:
                yield worker
