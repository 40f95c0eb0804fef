"""The steps that a request takes from state to state, attempt by attempt. Pure.

lifecycle.py says which event leads to which step.
"""

from collections.abc import Callable

from coordinator.core.contract import Token
from coordinator.core.effects import Emit, Ended, Outbox, PlacedAnew
from coordinator.core.placement.dispatcher import Dispatcher
from coordinator.core.request import Request, State
from coordinator.core.requests.assignments import Assignments
from coordinator.core.requests.faults import Faults
from coordinator.core.requests.trials import Trials
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Failed, TokenOut
from transport.wire.offers import Offer

NOT_FAULTS = frozenset({"preempted", "draining"})
TRIED_TWICE = frozenset({"not_finite", "digest_mismatch"})
"""What happens at a second worker too is the request's own doing."""


class Attempts:
    """Moves the requests of ``requests``, and removes those that have ended. An attempt that fails
    is followed by another one, until a request has had more than ``max_faults`` faults. ``clock``
    and ``monotonic`` are the lifecycle's."""

    def __init__(
        self,
        requests: dict[str, Request],
        registry: Registry,
        dispatcher: Dispatcher,
        assignments: Assignments,
        faults: Faults,
        trials: Trials,
        outbox: Outbox,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        max_faults: int,
    ) -> None:
        self._requests = requests
        self._registry = registry
        self._dispatcher = dispatcher
        self._assignments = assignments
        self._faults = faults
        self._trials = trials
        self._outbox = outbox
        self._clock = clock
        self._monotonic = monotonic
        self._max_faults = max_faults

    def begin(self, request: Request) -> None:
        """Queue the request, for the first time or again."""
        request.begin_attempt(self._clock())
        request.progress_at = self._monotonic()
        self._dispatcher.enqueue(request)
        self._outbox.record(request)

    def emit(self, request: Request, token: TokenOut) -> bool:
        """Stream the request's next token, which may be its last one; False for another token,
        which is stale. The caller recounts the request (``Assignments.recount``) if it goes on."""
        if token.index != len(request.output_ids):
            return False
        if "first_token_at" not in request.stages:
            request.stages["first_token_at"] = self._clock()
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
        request.progress_at = self._monotonic()
        self._faults.got_further(request)
        if not request.proved and (last or request.state is State.DECODING):
            self._faults.worked(request)
        if last:
            request.finish_reason = token.finish
            for instance in (request.prefill_worker, request.decode_worker):
                self._assignments.unassign(request, instance)
            self._end(request, State.FINISHED)
        return True

    def after_prefill(self, request: Request, offer: Offer | None) -> None:
        """The prompt is computed: hand it off, or without an offer go on at the same worker."""
        if offer is None:
            request.decode_worker = request.prefill_worker
            request.state = State.DECODING
            request.forget_prefix_keys()
            self._assignments.recount(request)
        else:
            request.offer = offer
            request.state = State.HANDOFF
            self._dispatcher.hand_off(request)
        self._outbox.record(request)

    def leave_decode_worker(self, request: Request, code: str, message: str) -> None:
        """Pull again if the prefill worker still offers the prompt, else compute it again."""
        request.failed_at = request.decode_worker
        if self._assignments.has_offer(request):
            self._assignments.unassign(request, request.decode_worker)
            request.decode_worker = ""
            request.progress_at = self._monotonic()
            self._dispatcher.hand_off(request)
            self._outbox.record(request)
        else:
            self.retry(request, code, message)

    def lose(self, request: Request, worker: Worker, *, died: bool) -> None:
        """The request's worker is gone. One death says little of a request that had company."""
        instance, role = worker.instance, worker.hello.role
        aboard = request.decode_worker == instance or request.state is State.PREFILLING
        request.losses += 1
        if died and aboard:
            self._trials.died(request)
        if died and aboard and worker.reserved_for is request:
            text = f"{request.deaths} {role} workers died that computed it, the last one alone"
            self.give_up(request, "poison_request", text)
        elif self._trials.too_many(request):
            text = f"gave up after {request.losses} workers were lost"
            self.give_up(request, "worker_lost", text)
        elif request.decode_worker:
            self.leave_decode_worker(request, "worker_lost", f"{instance} was lost")
        else:
            self.retry(request, "worker_lost", f"{instance} was lost")

    def retry(self, request: Request, code: str, message: str) -> None:
        """Compute it again, from the tokens already sent, unless it had too many faults."""
        self._take_back(request)
        request.faults += code not in NOT_FAULTS | {"worker_lost"}
        if request.faults > self._max_faults:
            text = f"gave up after {request.faults} faults; the last: {message}"
            self._end(request, State.FAILED, code, text)
        else:
            self.begin(request)
            self._outbox.add(PlacedAnew(request, code, message))

    def failed(self, request: Request, instance: str, message: Failed) -> None:
        """The worker that has the request failed: try elsewhere, or end the request."""
        code, text = message.code, message.message
        self._assignments.unassign(request, instance)  # it has let go of it
        again = code in TRIED_TWICE & request.failed_with
        self._faults.failed(request, instance, code, message.pulled)
        if code in NOT_FAULTS and instance == request.decode_worker:
            self.leave_decode_worker(request, code, text)
        elif self._may_pull_elsewhere(request, instance, code):
            request.faults += 1
            self.leave_decode_worker(request, code, text)
        elif (message.retry and not again) or self._larger_will_be_back(request, instance, code):
            request.failed_at = instance
            self.retry(request, code, text)
        else:
            self.give_up(request, code, text)
        request.failed_with.add(code)

    def finish(self, request: Request) -> None:
        """End the request: its text is complete, though its worker would go on."""
        self._take_back(request)
        request.finish_reason = "stop"
        self._end(request, State.FINISHED)

    def cancel(self, request: Request) -> None:
        self._take_back(request)
        self._end(request, State.CANCELLED)

    def give_up(self, request: Request, code: str, message: str) -> None:
        self._take_back(request)
        self._end(request, State.FAILED, code, message)

    def _take_back(self, request: Request) -> None:
        """End the attempt: the request waits no more, and its workers have nothing to do for it."""
        self._dispatcher.withdraw(request)
        self._assignments.cancel(request)

    def _end(self, request: Request, state: State, code: str = "", message: str = "") -> None:
        request.state = state
        request.code, request.message = code, message
        request.stages["ended_at"] = self._clock()
        del self._requests[request.request_id]
        self._faults.forget(request)
        self._outbox.record(request)
        self._outbox.add(Ended(request))

    def _may_pull_elsewhere(self, request: Request, instance: str, code: str) -> bool:
        """Whether only its copy failed to end, for the first time: another decode worker can try
        before the prompt is computed again."""
        if code != "pull_timeout" or "pull_timeout" in request.failed_with:
            return False
        return self._assignments.has_offer(request) and instance == request.decode_worker

    def _larger_will_be_back(self, request: Request, instance: str, code: str) -> bool:
        """Whether the request is too long for this worker, but not for one that was here before:
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
