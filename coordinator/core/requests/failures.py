"""Failures: what follows when an attempt of a request fails, or its worker is lost. Pure.

A request is pulled elsewhere if its prompt is still offered, otherwise retried, and failed after
too many faults or losses. faults.py charges the failure to workers, and quarantine.py separates
requests that may crash them.
"""

from coordinator.core.effects import NOT_FAULTS, Outbox, Retried
from coordinator.core.request import Request, State
from coordinator.core.requests.attempts import Attempts
from coordinator.core.requests.faults import Faults
from coordinator.core.requests.quarantine import Quarantine
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Cancel, Failed

TRIED_TWICE = frozenset({"not_finite", "digest_mismatch"})
"""A request that fails like this at a second worker too is the cause itself."""


class Failures:
    """Retries and fails requests. A request with more than ``max_faults`` faults fails."""

    def __init__(
        self,
        registry: Registry,
        attempts: Attempts,
        faults: Faults,
        quarantine: Quarantine,
        outbox: Outbox,
        max_faults: int,
    ) -> None:
        self._registry = registry
        self._attempts = attempts
        self._faults = faults
        self._quarantine = quarantine
        self._outbox = outbox
        self._max_faults = max_faults

    def failed(self, request: Request, instance: str, message: Failed) -> None:
        """Handle the failure of the request's worker: try elsewhere, or end the request."""
        code, text = message.code, message.message
        self._attempts.unassign(request, instance)  # the worker has already dropped it
        again = code in TRIED_TWICE & request.failed_with
        self._outbox.add(*self._faults.failed(request, instance, code, message.pulled))
        if code in NOT_FAULTS and instance == request.decode_worker:
            self._pull_again(request, code, text)
        elif self._may_pull_elsewhere(request, instance, code):
            request.faults += 1
            self._pull_again(request, code, text)
        elif (message.retry and not again) or self._larger_will_return(request, instance, code):
            request.failed_at = instance
            self.retry(request, code, text)
        else:
            self._attempts.fail(request, code, text)
        request.failed_with.add(code)

    def lose_worker(self, request: Request, worker: Worker, *, died: bool) -> None:
        """Retry a request whose worker is gone, or fail it if it has killed too many workers. The
        death of a worker that ran other requests too is weak evidence against this one."""
        instance, role = worker.instance, worker.role
        was_running = request.decode_worker == instance or request.state is State.PREFILLING
        request.losses += 1
        if died and was_running:
            self._quarantine.record_death(request, instance)
        if died and was_running and worker.reserved_for is request:
            text = f"{request.deaths} {role} workers died that computed it, the last one alone"
            self._attempts.fail(request, "poison_request", text)
        elif self._quarantine.lost_too_many(request):
            text = f"gave up after {request.losses} workers were lost"
            self._attempts.fail(request, "worker_lost", text)
        elif request.decode_worker:
            self._pull_again(request, "worker_lost", f"{instance} was lost")
        else:
            self.retry(request, "worker_lost", f"{instance} was lost")

    def reconcile(
        self, worker: Worker, held: set[tuple[str, int]], heartbeat_s: float, now: float
    ) -> None:
        """Compare the (request, attempt) pairs that a worker says it holds with what was placed
        there: no request may be lost with a message, and nothing kept for one that has ended.

        An order may cross a heartbeat, and the next heartbeat too: the worker sends it just after
        it has read its messages, and a long step follows. But between any two heartbeats the worker
        reads all its messages. So by this heartbeat it has read every order that was sent before
        the last heartbeat but one arrived.
        """
        last_but_one, _ = worker.beats
        # Heartbeats that had queued up may be handled at any pace while this process catches up.
        sent_before = min(last_but_one, now - 3 * heartbeat_s)
        for request_id, attempt in held:
            known = worker.load.requests.get(request_id)
            if known is None or known.attempt > attempt:
                self._outbox.send(worker.instance, Cancel(request_id, attempt))
        for request in list(worker.load.requests.values()):
            missing = (request.request_id, request.attempt) not in held
            if missing and request.assigned_at < sent_before:
                self._lose_order(request, worker)
        worker.note_beat(now, heartbeat_s)

    def retry(self, request: Request, code: str, message: str) -> None:
        """Compute a request again, from the tokens already sent, unless it had too many faults."""
        request.faults += code not in NOT_FAULTS | {"worker_lost"}
        if request.faults > self._max_faults:
            text = f"gave up after {request.faults} faults; the last: {message}"
            self._attempts.fail(request, code, text)
        else:
            self._attempts.take_back(request)
            self._attempts.begin(request)
            self._outbox.add(Retried(request, code, message))

    def _lose_order(self, request: Request, worker: Worker) -> None:
        """Retry a request that its worker does not hold, though it was ordered there."""
        request.failed_at = worker.instance
        self._outbox.add(*self._faults.failed(request, worker.instance, "lost_at_worker"))
        self.retry(request, "lost_at_worker", f"{worker.instance} no longer has it")

    def _pull_again(self, request: Request, code: str, message: str) -> None:
        """Pull again if the prefill worker still offers the prompt, else retry."""
        request.failed_at = request.decode_worker
        if self._attempts.has_offer(request):
            self._attempts.leave_decode_worker(request)
        else:
            self.retry(request, code, message)

    def _may_pull_elsewhere(self, request: Request, instance: str, code: str) -> bool:
        """True if only the copy failed to end, for the first time: another decode worker can try
        before the prompt is computed again."""
        if code != "pull_timeout" or "pull_timeout" in request.failed_with:
            return False
        return self._attempts.has_offer(request) and instance == request.decode_worker

    def _larger_will_return(self, request: Request, instance: str, code: str) -> bool:
        """True if the request is too long for this worker, but not for one that was here before:
        then it waits for a worker as large, as after any loss."""
        worker = self._registry.get(instance)
        if code != "too_long" or worker is None:
            return False
        role = worker.role
        wanted = request.num_tokens if role == "prefill" else request.max_len
        needs_len = min(wanted, self._registry.longest_seen(role))
        if needs_len <= worker.hello.max_seq_len:
            return False
        request.too_long_for, request.needs_len = role, needs_len
        return True
