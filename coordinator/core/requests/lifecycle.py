"""The life of every request: what happens when it arrives, is computed, waits and ends. Pure.

``Lifecycle`` is the public object of this room. The hub and the files beside it (inbox.py,
workers/membership.py by a callback) call it; all other files here are private. It owns the open
requests, asks placement/ what to place, and knows the workers through workers/registry.py.

Each public method is one event. The effects that follow from it (effects.py) are carried out before
the method returns. The states, and the events that lead from one to the next:

    queued ─ placed ► prefilling ─ prefilled ► handoff ─ transferred ► decoding ─ last ► finished
      ▲                   │  │                    ▲                    │ │
      │                   │  │                    └─ settled: it moves ┘ │
      │                   │  └──── at a colocated worker ───────────────►┤
      └──── retry: worker lost, preempted, a fault; attempt + 1 ────────┘

Any state may end as finished (a stop string), failed or cancelled. A request that is retried
carries the tokens already sent as part of its prompt, so its stream continues where it was.
Messages about anything but the current attempt at the current worker are stale: they are dropped
and counted.

attempts.py has the steps of one request and the orders to its workers. failures.py says what
follows when an attempt fails, moves.py which requests go on at another worker, faults.py which
worker a failure is charged to, and quarantine.py which requests may crash their workers. overdue.py
finds requests that have waited for too long.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from coordinator.core.contract import SequenceRequest
from coordinator.core.effects import Effect, HandedOff, Outbox, WorkerJoined, WorkerLeft
from coordinator.core.placement.dispatcher import Dispatcher
from coordinator.core.request import Clocks, Request, State
from coordinator.core.requests.attempts import Attempts
from coordinator.core.requests.departures import Departures
from coordinator.core.requests.failures import Failures
from coordinator.core.requests.faults import Faults
from coordinator.core.requests.moves import Moves
from coordinator.core.requests.overdue import Overdue
from coordinator.core.requests.quarantine import Quarantine
from coordinator.core.settings import HubSettings, PlacementLimits, RetryLimits
from coordinator.core.soft_pools import SoftPools
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Departure, Worker
from transport.wire.messages import (
    Dismissed,
    ExpectHandoff,
    Failed,
    LastChunk,
    PeerTested,
    Prefilled,
    Settled,
    Tokens,
    TransferDone,
)
from transport.wire.offers import PrefixesChanged
from transport.wire.prompt_logprobs import PromptLogprobs

MAX_FAVOURED = 8
"""Most requests for which others make room in one event."""


class Lifecycle:
    """All open requests, and the events of clients and workers that move them.

    ``carry_out`` gets each effect. ``clock`` gives Unix seconds, for the record; ``monotonic``
    gives seconds that no step of the system clock disturbs, for every decision. ``stale_dropped``
    counts stale messages.
    """

    def __init__(
        self,
        registry: Registry,
        limits: PlacementLimits,
        carry_out: Callable[[Effect], None],
        clock: Callable[[], float],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        settings: HubSettings | None = None,
        retries: RetryLimits | None = None,
        soft: SoftPools | None = None,
    ) -> None:
        retries = retries or RetryLimits()
        clocks = Clocks(clock, monotonic)
        self.stale_dropped = 0
        self._registry = registry
        self._clocks = clocks
        self._num_arrived = 0
        self._outbox = outbox = Outbox(carry_out)
        self._faults = faults = Faults(registry, monotonic)
        self._quarantine = Quarantine(retries)
        self._dispatcher = Dispatcher(registry, limits, retries.wait_s, monotonic, soft)
        self._attempts = Attempts(registry, self._dispatcher, faults, outbox, clocks)
        self._failures = Failures(
            registry, self._attempts, faults, self._quarantine, outbox, retries.max_faults
        )
        self._moves = Moves(registry, self._dispatcher, monotonic, pools_are_soft=soft is not None)
        self._departures = Departures(registry, self._attempts.requests, monotonic)
        self._overdue = Overdue(settings or HubSettings(), self._attempts.requests)

    @property
    def requests(self) -> Mapping[str, Request]:
        """The open requests by id, oldest first."""
        return self._attempts.requests

    @property
    def num_queued(self) -> int:
        return self._dispatcher.num_queued

    @property
    def num_tokens_queued(self) -> int:
        """Tokens of the requests that wait for a worker to compute them."""
        return self._dispatcher.num_tokens_queued

    def submit(self, spec: SequenceRequest, received_at: float) -> Request:
        """Accept a request."""
        assert spec.request_id not in self.requests, "a request id used twice"
        self._num_arrived += 1
        now = self._clocks.monotonic()
        request = Request(spec, self._num_arrived, accepted_at=now, progress_at=now)
        request.stages["received_at"] = received_at
        with self._outbox:
            self._attempts.begin(request)
            self._overdue.add(request, now)
            self._place()
        return request

    def stop_early(self, request: Request) -> None:
        """Finish a request because a stop string was found in its text."""
        if not request.state.terminal:
            with self._outbox:
                self._attempts.finish(request)
                self._place()

    def cancel(self, request: Request) -> None:
        """End a request whose client has disconnected."""
        if not request.state.terminal:
            with self._outbox:
                self._attempts.cancel(request)
                self._place()

    def fail_all(self, requests: Iterable[Request], code: str, message: str) -> None:
        """Fail requests together, so that none is placed where another one was."""
        with self._outbox:
            for request in requests:
                if not request.state.terminal:
                    self._attempts.fail(request, code, message)
            self._place()

    def tick(self) -> None:
        """Once per heartbeat: fail overdue requests, and clear reserved workers."""
        with self._outbox:
            for request, code, message in list(self._overdue.due(self._clocks.monotonic())):
                self._attempts.fail(request, code, message)
            for request in self._dispatcher.overdue():
                message = f"{request.decode_worker or request.prefill_worker} is reserved"
                self._failures.retry(request, "preempted", message)
            self._place()

    def prompt_logprobs(self, instance: str, message: PromptLogprobs) -> None:
        """Store log-probabilities of prompt tokens that a worker has computed."""
        request = self._current(instance, message.request_id, message.attempt, State.PREFILLING)
        if request is not None:
            self.stale_dropped += not request.take_prompt_rows(message)

    def last_chunk(self, instance: str, message: LastChunk) -> None:
        """Handle ``LastChunk``: the worker launched the last chunk of a prompt, so warn the decode
        worker that will probably pull it."""
        request = self._current(instance, message.request_id, message.attempt, State.PREFILLING)
        if request is not None and (worker := self._dispatcher.next_puller(request)) is not None:
            with self._outbox:
                self._outbox.send(worker.instance, ExpectHandoff())

    def prefilled(self, instance: str, message: Prefilled) -> None:
        """Handle ``Prefilled``: stream the attempt's first token, and queue the handoff."""
        token = message.token
        request = self._current(instance, token.request_id, token.attempt, State.PREFILLING)
        if request is None:
            return
        request.was_prefilled(message, self._clocks.unix())
        with self._outbox:
            self.stale_dropped += not self._attempts.emit(request, token)
            if token.finish is None:
                self._attempts.after_prefill(request, message.offer)
            self._place(computed=request)

    def settled(self, instance: str, message: Settled) -> None:
        """Handle ``Settled``: a request that is to move waits for the worker that goes on with
        it."""
        request = self._current(instance, message.request_id, message.attempt, State.DECODING)
        if request is None:
            return
        with self._outbox:
            self._attempts.after_settling(request, message.offer)
            self._place()

    def transfer_done(self, instance: str, message: TransferDone) -> None:
        """Handle ``TransferDone``: the decode worker has its copy, so release the offer."""
        request = self._current(instance, message.request_id, message.attempt, State.HANDOFF)
        if request is None:
            return
        request.transfer_done(message, self._clocks.unix())
        with self._outbox:
            self._attempts.after_pull(request)
            self._place()

    def tokens(self, instance: str, message: Tokens) -> None:
        """Stream the tokens of one decode step."""
        with self._outbox:
            for first in message.first_steps:
                request = self._current(instance, first.request_id, first.attempt, State.DECODING)
                if request is not None and request.was_handed_off and not request.has_moved:
                    request.stages["first_step_s"] = first.seconds
                    request.stages["first_decode_at"] = self._clocks.unix()
                    self._outbox.add(HandedOff(request))
            has_room = False
            for token in message.tokens:
                request = self._current(instance, token.request_id, token.attempt, State.DECODING)
                if request is None:
                    continue
                self.stale_dropped += not self._attempts.emit(request, token)
                released = request.quarantined and self._quarantine.release(request)
                has_room = has_room or released or request.state.terminal
            worker = self._registry.get(instance)
            if has_room or self._dispatcher.has_gathered():
                self._place()
            elif worker is not None and self._moves.may_relieve(worker):
                self._move()

    def failed(self, instance: str, message: Failed) -> None:
        """Handle ``Failed``: a worker gave up the request's attempt, or an offer."""
        request = self.requests.get(message.request_id)
        if request is None or request.attempt != message.attempt:
            if request is not None and message.code == "offer_expired":
                self._faults.offer_expired(request)
            self.stale_dropped += 1
        elif instance == (request.decode_worker or request.prefill_worker):
            with self._outbox:
                self._failures.failed(request, instance, message)
                self._place()
        elif instance == request.prefill_worker:
            # The prefill worker dropped an offer that a decode worker may still pull.
            self._attempts.forget_offer(request)
        else:
            self.stale_dropped += 1

    def worker_joined(self, instance: str) -> None:
        """Introduce a worker that has just joined to its peers, and give it work."""
        worker = self._registry.get(instance)
        if worker is None:
            return
        with self._outbox:
            self._outbox.add(WorkerJoined(worker))
            self._outbox.send_all(self._registry.introduce(worker))
            self._place()

    def peer_tested(self, instance: str, message: PeerTested) -> None:
        """Handle ``PeerTested``: a worker can read a peer's memory, or cannot."""
        puller = self._registry.get(instance)
        if puller is None or self._registry.get(message.instance) is None:
            self.stale_dropped += 1
            return
        pairs = self._registry.pairs_of(puller)
        pairs.report(message.instance, instance, message.problem, self._clocks.monotonic())
        with self._outbox:
            self._place()

    def prefixes_changed(self, instance: str, message: PrefixesChanged) -> None:
        """Handle ``PrefixesChanged``: note which prefixes a worker keeps."""
        orders = self._registry.prefixes_changed(instance, message)
        with self._outbox:
            self._outbox.send_all(orders)

    def reconcile(self, worker: Worker, held: set[tuple[str, int]], heartbeat_s: float) -> None:
        """Handle a heartbeat's list of requests: compare it with what was placed at the worker."""
        with self._outbox:
            now = self._clocks.monotonic()
            self._failures.reconcile(worker, held, heartbeat_s, now)
            self._place()

    def worker_draining(self, worker: Worker) -> None:
        """Give a worker no new work; others may get what waits for it."""
        with self._outbox:
            worker.draining, worker.dismissed = True, False
            worker.drains_since = self._clocks.monotonic()
            self._place()

    def roles_changed(self) -> None:
        """Place what waits, and move what is decoded where nothing is decoded any more."""
        self._dispatcher.roles_changed()
        with self._outbox:
            self._place()

    def worker_lost(self, instance: str, departure: Departure = "silent") -> None:
        """Remove a worker, and retry its requests elsewhere. A pull from a dead prefill worker may
        still succeed."""
        worker = self._registry.remove(instance)
        if worker is None:
            return
        self._dispatcher.forget_worker(instance)
        with self._outbox:
            self._outbox.send_all(self._registry.peers_left(worker))
            for request in list(worker.load.requests.values()):
                if request.decode_worker in ("", instance):
                    self._failures.lose_worker(request, worker, died=departure == "silent")
            self._place()
            self._outbox.add(WorkerLeft(worker, departure))

    def worker_returned(self, instance: str) -> None:
        """Handle a message of a worker that was taken for dead: its requests did not end it."""
        with self._outbox:
            for request in self.requests.values():
                if self._quarantine.take_back(request, instance) and request.state is State.QUEUED:
                    self._dispatcher.withdraw(request)
                    self._dispatcher.enqueue(request)
            self._place()

    def _place(self, computed: Request | None = None) -> None:
        """Place all requests that can be placed, oldest first. ``computed`` is a request whose
        prompt was computed just now."""
        self._pull()
        # Decode workers are idle until their orders arrive, and to place the prompts takes as long.
        self._outbox.send_orders()
        if computed is not None:
            self._attempts.recount(computed)
        self._compute()
        self._move()
        self._dismiss()
        for _ in range(MAX_FAVOURED):
            victims = self._dispatcher.victims()
            if not victims:
                return
            text = "its key uses more than its share, and another key has a request waiting"
            for victim in victims:
                self._failures.retry(victim, "preempted", text)
            self._pull()
            self._compute()
            self._move()

    def _pull(self) -> None:
        for request, worker in self._dispatcher.handoffs():
            self._attempts.pull(request, worker)

    def _compute(self) -> None:
        for request, place in self._dispatcher.prompts():
            self._attempts.compute(request, place)

    def _move(self) -> None:
        for request, reason, to in self._moves.due():
            self._attempts.move(request, reason, to)

    def _dismiss(self) -> None:
        for worker in self._departures.due():
            worker.dismissed = True
            self._outbox.send(worker.instance, Dismissed())

    def _current(
        self, instance: str, request_id: str, attempt: int, state: State
    ) -> Request | None:
        """The request, if this worker may speak about it now; otherwise the message is stale."""
        request = self.requests.get(request_id)
        if request is not None and request.attempt == attempt and request.state is state:
            owner = request.prefill_worker if state is State.PREFILLING else request.decode_worker
            if owner == instance:
                return request
        self.stale_dropped += 1
        return None
