"""The steps that a request takes from state to state, attempt by attempt. Pure.

lifecycle.py says which event leads to which step.
"""

from coordinator.core.contract import Token
from coordinator.core.effects import NOT_FAULTS, Emit, Ended, Retried
from coordinator.core.placement.dispatcher import Dispatcher
from coordinator.core.request import Clocks, Request, State
from coordinator.core.requests.assignments import Assignments
from coordinator.core.requests.faults import Faults
from coordinator.core.requests.outbox import Outbox
from coordinator.core.requests.quarantine import Quarantine
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Cancel, Failed, TokenOut
from transport.wire.offers import Offer

TRIED_TWICE = frozenset({"not_finite", "digest_mismatch"})
"""A request that fails like this at a second worker too is the cause itself."""


class Attempts:
    """The open requests, and their steps. A failed attempt is followed by another one, until the
    request has had more than ``max_faults`` faults."""

    def __init__(
        self,
        registry: Registry,
        dispatcher: Dispatcher,
        assignments: Assignments,
        faults: Faults,
        quarantine: Quarantine,
        outbox: Outbox,
        clocks: Clocks,
        max_faults: int,
    ) -> None:
        self.requests: dict[str, Request] = {}
        self._registry = registry
        self._dispatcher = dispatcher
        self._assignments = assignments
        self._faults = faults
        self._quarantine = quarantine
        self._outbox = outbox
        self._clocks = clocks
        self._max_faults = max_faults

    def begin(self, request: Request) -> None:
        """Queue a request, for the first time or again."""
        self.requests[request.request_id] = request
        request.begin_attempt(self._clocks.unix())
        request.progress_at = self._clocks.monotonic()
        self._dispatcher.enqueue(request)
        self._outbox.record(request)

    def emit(self, request: Request, token: TokenOut) -> bool:
        """Stream a request's next token, which may be its last one. Returns False for a token that
        is not the next one: it is stale."""
        if token.index != len(request.output_ids):
            return False
        if "first_token_at" not in request.stages:
            request.stages["first_token_at"] = self._clocks.unix()
        num_reused = 0 if request.output_ids else request.num_reused
        request.output_ids.append(token.token_id)
        verified, accepted = token.drafts
        request.drafts_verified += verified
        request.drafts_accepted += accepted
        streamed = Token(
            token.token_id, token.logprobs, token.finish, tuple(request.prompt_rows), num_reused
        )
        request.prompt_rows.clear()
        self._outbox.add(Emit(request, streamed))
        last = token.finish is not None
        request.progress_at = self._clocks.monotonic()
        self._outbox.add(*self._faults.got_token(request))
        if not request.decoded and (last or request.state is State.DECODING):
            self._outbox.add(*self._faults.succeeded(request))
        if last:
            request.finish_reason = token.finish
            for instance in (request.prefill_worker, request.decode_worker):
                self._assignments.unassign(request, instance)
            self._end(request, State.FINISHED)
        elif request.state is State.DECODING:
            self._assignments.recount(request)
        return True

    def after_prefill(self, request: Request, offer: Offer | None) -> None:
        """Hand a computed prompt off, or continue it at the same worker if there is no offer."""
        if offer is None:
            request.decode_worker = request.prefill_worker
            request.state = State.DECODING
            request.forget_prefix_keys()
            self._assignments.recount(request)
        else:
            request.offer = offer
            request.state = State.HANDOFF
            self._dispatcher.enqueue_handoff(request)
        self._outbox.record(request)

    def after_pull(self, request: Request) -> None:
        """Continue a request whose decode worker has pulled the offer."""
        request.state = State.DECODING
        request.progress_at = self._clocks.monotonic()
        self._assignments.pulled(request)
        self._outbox.record(request)

    def lose_worker(self, request: Request, worker: Worker, *, died: bool) -> None:
        """Retry a request whose worker is gone, or fail it if it has killed too many workers. The
        death of a worker that ran other requests too is weak evidence against this one."""
        instance, role = worker.instance, worker.hello.role
        was_running = request.decode_worker == instance or request.state is State.PREFILLING
        request.losses += 1
        if died and was_running:
            self._quarantine.record_death(request)
        if died and was_running and worker.reserved_for is request:
            text = f"{request.deaths} {role} workers died that computed it, the last one alone"
            self.fail(request, "poison_request", text)
        elif self._quarantine.lost_too_many(request):
            text = f"gave up after {request.losses} workers were lost"
            self.fail(request, "worker_lost", text)
        elif request.decode_worker:
            self._leave_decode_worker(request, "worker_lost", f"{instance} was lost")
        else:
            self.retry(request, "worker_lost", f"{instance} was lost")

    def reconcile(self, worker: Worker, held: set[tuple[str, int]], heartbeat_s: float) -> None:
        """Compare the (request, attempt) pairs that a worker says it holds with what was placed
        there: no request may be lost with a message, and nothing kept for one that has ended.

        An order may cross a heartbeat, and the next heartbeat too: it is sent just after the worker
        has read its messages, and a long step follows. But between any two heartbeats the worker
        reads all its messages. So it has read an order by this heartbeat if the order was sent
        before the last heartbeat but one arrived.
        """
        last_but_one, _ = worker.beats
        # Heartbeats that had queued up may be handled at any pace while this process catches up.
        sent_before = min(last_but_one, self._clocks.monotonic() - 3 * heartbeat_s)
        for request_id, attempt in held:
            known = worker.load.requests.get(request_id)
            if known is None or known.attempt > attempt:
                self._outbox.send(worker.instance, Cancel(request_id, attempt))
        for request in list(worker.load.requests.values()):
            missing = (request.request_id, request.attempt) not in held
            if missing and request.assigned_at < sent_before:
                self._lose_order(request, worker)
        worker.note_beat(self._clocks.monotonic(), heartbeat_s)

    def failed(self, request: Request, instance: str, message: Failed) -> None:
        """Handle the failure of the request's worker: try elsewhere, or end the request."""
        code, text = message.code, message.message
        self._assignments.unassign(request, instance)  # the worker has already dropped it
        again = code in TRIED_TWICE & request.failed_with
        self._outbox.add(*self._faults.failed(request, instance, code, message.pulled))
        if code in NOT_FAULTS and instance == request.decode_worker:
            self._leave_decode_worker(request, code, text)
        elif self._may_pull_elsewhere(request, instance, code):
            request.faults += 1
            self._leave_decode_worker(request, code, text)
        elif (message.retry and not again) or self._larger_will_return(request, instance, code):
            request.failed_at = instance
            self.retry(request, code, text)
        else:
            self.fail(request, code, text)
        request.failed_with.add(code)

    def retry(self, request: Request, code: str, message: str) -> None:
        """Compute a request again, from the tokens already sent, unless it had too many faults."""
        self._take_back(request)
        request.faults += code not in NOT_FAULTS | {"worker_lost"}
        if request.faults > self._max_faults:
            text = f"gave up after {request.faults} faults; the last: {message}"
            self._end(request, State.FAILED, code, text)
        else:
            self.begin(request)
            self._outbox.add(Retried(request, code, message))

    def finish(self, request: Request) -> None:
        """End a request whose text is complete, though its worker would continue."""
        self._take_back(request)
        request.finish_reason = "stop"
        self._end(request, State.FINISHED)

    def cancel(self, request: Request) -> None:
        self._take_back(request)
        self._end(request, State.CANCELLED)

    def fail(self, request: Request, code: str, message: str) -> None:
        self._take_back(request)
        self._end(request, State.FAILED, code, message)

    def _lose_order(self, request: Request, worker: Worker) -> None:
        """Retry a request that its worker does not hold, though it was ordered there."""
        request.failed_at = worker.instance
        self._outbox.add(*self._faults.failed(request, worker.instance, "lost_at_worker"))
        self.retry(request, "lost_at_worker", f"{worker.instance} no longer has it")

    def _leave_decode_worker(self, request: Request, code: str, message: str) -> None:
        """Pull again if the prefill worker still offers the prompt, else retry."""
        request.failed_at = request.decode_worker
        if self._assignments.has_offer(request):
            self._assignments.unassign(request, request.decode_worker)
            request.decode_worker = ""
            request.progress_at = self._clocks.monotonic()
            self._dispatcher.enqueue_handoff(request)
            self._outbox.record(request)
        else:
            self.retry(request, code, message)

    def _take_back(self, request: Request) -> None:
        """End the attempt: the request leaves the queues and its workers."""
        self._dispatcher.withdraw(request)
        self._assignments.cancel(request)

    def _end(self, request: Request, state: State, code: str = "", message: str = "") -> None:
        request.state = state
        request.code, request.message = code, message
        request.stages["ended_at"] = self._clocks.unix()
        del self.requests[request.request_id]
        self._faults.forget(request)
        self._outbox.record(request)
        self._outbox.add(Ended(request))

    def _may_pull_elsewhere(self, request: Request, instance: str, code: str) -> bool:
        """True if only the copy failed to end, for the first time: another decode worker can try
        before the prompt is computed again."""
        if code != "pull_timeout" or "pull_timeout" in request.failed_with:
            return False
        return self._assignments.has_offer(request) and instance == request.decode_worker

    def _larger_will_return(self, request: Request, instance: str, code: str) -> bool:
        """True if the request is too long for this worker, but not for one that was here before:
        then it waits for a worker as large, as after any loss."""
        worker = self._registry.get(instance)
        if code != "too_long" or worker is None:
            return False
        role = worker.hello.role
        wanted = request.num_tokens if role == "prefill" else request.max_len
        needs_len = min(wanted, self._registry.longest_seen(role))
        if needs_len <= worker.hello.max_seq_len:
            return False
        request.too_long_for, request.needs_len = role, needs_len
        return True
