"""The life of every request: what happens as it arrives, is computed, waits and ends. Pure.

Each public method is one event. The effects that follow from it (effects.py) are carried out
before the method returns. The states and the events that lead on:

    queued ─ placed ► prefilling ─ prefilled ► handoff ─ transferred ► decoding ─ last ► finished
      ▲                   │  └─── at a colocated worker ──────────────►┤
      └──── retry: worker lost, preempted, a fault; attempt + 1 ──────┘

Any state may end as finished (a stop string), failed or cancelled. A request that is placed
again carries the tokens already sent as part of its prompt, so its stream goes on where it was.
Messages about anything but the current attempt at the current worker are stale: dropped and
counted.

worker_events.py has the events of workers. attempts.py has the steps of one request, faults.py says
which worker a fault is charged to, trials.py which requests may be what ends their workers,
overdue.py which have waited for too long.
"""

import time
from collections.abc import Callable, Iterable

from coordinator.core.contract import SequenceRequest
from coordinator.core.effects import Effect, HandedOff, Outbox
from coordinator.core.placement.candidates import Candidates
from coordinator.core.placement.choice import PlacementLimits
from coordinator.core.placement.dispatcher import Dispatcher
from coordinator.core.request import Request, State
from coordinator.core.requests.assignments import Assignments
from coordinator.core.requests.attempts import Attempts
from coordinator.core.requests.faults import Faults
from coordinator.core.requests.overdue import Overdue
from coordinator.core.requests.trials import TrialLimits, Trials
from coordinator.core.requests.worker_events import WorkerEvents
from coordinator.core.settings import HubSettings
from coordinator.core.workers.registry import Registry
from transport.wire.messages import Failed, LastChunk, Prefilled, Tokens, TransferDone
from transport.wire.prompt_logprobs import PromptLogprobs


class Lifecycle:
    """All open requests; ``workers`` are the events of the workers that have them. ``carry_out``
    gets each effect. ``clock`` gives Unix seconds, for the record; ``monotonic`` seconds that no
    step of the system's clock disturbs, for every decision.
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
        trials: TrialLimits | None = None,
        max_faults: int = 4,
    ) -> None:
        self.requests: dict[str, Request] = {}
        self._stale_dropped = 0
        self._registry = registry
        self._clock = clock
        self._monotonic = monotonic
        self._arrivals = 0
        self._outbox = outbox = Outbox(carry_out)
        self._overdue = Overdue(settings or HubSettings(), self.requests)
        self._faults = Faults(registry, monotonic, outbox.add)
        self._trials = Trials(registry, trials or TrialLimits(), monotonic)
        self._assignments = Assignments(
            registry, self._faults, outbox, clock=clock, monotonic=monotonic
        )
        self._dispatcher = Dispatcher(
            registry, limits, Candidates(registry, monotonic), self._assignments, self._trials,
            outbox,
        )  # fmt: skip
        self._attempts = Attempts(
            self.requests, registry, self._dispatcher, self._assignments, self._faults,
            self._trials, outbox, clock=clock, monotonic=monotonic, max_faults=max_faults,
        )  # fmt: skip
        self.workers = WorkerEvents(
            registry, self._dispatcher, self._attempts, self._faults, self._trials, outbox,
            monotonic,
        )  # fmt: skip

    @property
    def num_queued(self) -> int:
        return self._dispatcher.num_queued

    @property
    def stale_dropped(self) -> int:
        """Messages that were no longer, or not yet, to the point."""
        return self._stale_dropped + self.workers.stale_dropped

    def submit(self, spec: SequenceRequest, received_at: float) -> Request:
        assert spec.request_id not in self.requests, "a request id used twice"
        self._arrivals += 1
        now = self._monotonic()
        request = Request(spec, self._arrivals, accepted_at=now, progress_at=now)
        request.stages["received_at"] = received_at
        self.requests[request.request_id] = request
        with self._outbox:
            self._attempts.begin(request)
            self._overdue.add(request, now)
            self._dispatcher.run()
        return request

    def stop_early(self, request: Request) -> None:
        """Its text is complete: a stop string was found."""
        if not request.state.terminal:
            with self._outbox:
                self._attempts.finish(request)
                self._dispatcher.run()

    def cancel(self, request: Request) -> None:
        """Its client is gone."""
        if not request.state.terminal:
            with self._outbox:
                self._attempts.cancel(request)
                self._dispatcher.run()

    def fail_all(self, requests: Iterable[Request], code: str, message: str) -> None:
        """Fail them together, so that none is placed where another one was."""
        with self._outbox:
            for request in requests:
                if not request.state.terminal:
                    self._attempts.give_up(request, code, message)
            self._dispatcher.run()

    def tick(self) -> None:
        """Once a heartbeat: fail what is overdue, and clear workers that are reserved."""
        with self._outbox:
            for request, code, message in list(self._overdue.due(self._monotonic())):
                self._attempts.give_up(request, code, message)
            for request in self._trials.in_the_way():
                message = f"{request.decode_worker or request.prefill_worker} is reserved"
                self._attempts.retry(request, "preempted", message)
            self._dispatcher.run()

    def prompt_logprobs(self, instance: str, message: PromptLogprobs) -> None:
        """Of some tokens of a prompt that is being computed."""
        request = self._current(instance, message.request_id, message.attempt, State.PREFILLING)
        if request is not None:
            self._stale_dropped += not request.take_prompt_rows(message)

    def last_chunk(self, instance: str, message: LastChunk) -> None:
        """A prompt will be computed in a moment, and then be handed off."""
        request = self._current(instance, message.request_id, message.attempt, State.PREFILLING)
        if request is not None:
            with self._outbox:
                self._dispatcher.announce(request)

    def prefilled(self, instance: str, message: Prefilled) -> None:
        """The prompt is computed, and the first token of this attempt is here."""
        token = message.token
        request = self._current(instance, token.request_id, token.attempt, State.PREFILLING)
        if request is None:
            return
        request.was_prefilled(message, self._clock())
        with self._outbox:
            self._stale_dropped += not self._attempts.emit(request, token)
            if token.finish is None:
                self._attempts.after_prefill(request, message.offer)
            self._dispatcher.run()

    def transfer_done(self, instance: str, message: TransferDone) -> None:
        """The decode worker has the caches: the prefill worker need not keep them."""
        request = self._current(instance, message.request_id, message.attempt, State.HANDOFF)
        if request is None:
            return
        request.transfer_done(message, self._clock())
        request.state = State.DECODING
        request.progress_at = self._monotonic()
        self._registry.require(instance).load.pending_pulls.pop(request.request_id, None)
        with self._outbox:
            self._assignments.release_offer(request)
            self._outbox.record(request)
            self._dispatcher.run()

    def tokens(self, instance: str, message: Tokens) -> None:
        """The tokens of one decode step."""
        with self._outbox:
            for first in message.first_steps:
                request = self._current(instance, first.request_id, first.attempt, State.DECODING)
                if request is not None:
                    request.stages["first_step_s"] = first.seconds
                    request.stages["first_decode_at"] = self._clock()
                    self._outbox.add(HandedOff(request))
            ended = False
            for token in message.tokens:
                request = self._current(instance, token.request_id, token.attempt, State.DECODING)
                if request is None:
                    continue
                self._stale_dropped += not self._attempts.emit(request, token)
                if not request.state.terminal:
                    self._assignments.recount(request)
                passed = request.suspect and self._trials.passes(request)
                ended = ended or passed or request.state.terminal
            if ended:
                self._dispatcher.run()

    def failed(self, instance: str, message: Failed) -> None:
        """A worker gave up the request's attempt, or an offer."""
        request = self.requests.get(message.request_id)
        if request is None or request.attempt != message.attempt:
            if request is not None and message.code == "offer_expired":
                self._faults.offer_expired(request)
            self._stale_dropped += 1
        elif instance == (request.decode_worker or request.prefill_worker):
            with self._outbox:
                self._attempts.failed(request, instance, message)
                self._dispatcher.run()
        elif instance == request.prefill_worker:
            # It gave up an offer that a decode worker may still pull.
            self._assignments.forget_offer(request)
        else:
            self._stale_dropped += 1

    def _current(
        self, instance: str, request_id: str, attempt: int, state: State
    ) -> Request | None:
        """The request, if this worker may speak about it now."""
        request = self.requests.get(request_id)
        if request is not None and request.attempt == attempt and request.state is state:
            owner = request.prefill_worker if state is State.PREFILLING else request.decode_worker
            if owner == instance:
                return request
        self._stale_dropped += 1
        return None
