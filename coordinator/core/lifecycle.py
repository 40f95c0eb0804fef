"""The life of every request: what happens when something arrives, ends or dies. Pure.

Each method takes one event and adds the effects that follow from it; effect_runner.py carries them
out. The states and the events that lead on:

    queued ─ placed ► prefilling ─ prefilled ► handoff ─ transferred ► decoding ─ last ► finished
      ▲                   │  └─── at a colocated worker ──────────────►┤
      └──── retry: worker lost, preempted, a fault; attempt + 1 ──────┘

Any state may end as finished (a stop string), failed or cancelled. A request that is placed
again carries the tokens already sent as part of its prompt, so its stream goes on where it was.
Messages about anything but the current attempt at the current worker are stale: dropped and
counted.

faults.py says which worker a fault is charged to, trials.py which requests may be what ends their
workers, overdue.py which have waited for too long.
"""

import time
from collections.abc import Callable, Iterable

from coordinator.core.contract import SequenceRequest, Token
from coordinator.core.dispatch import Dispatcher
from coordinator.core.effects import Effect, Emit, Ended, HandedOff, PlacedAnew, Recorded, Send
from coordinator.core.faults import Faults
from coordinator.core.hub_settings import HubSettings
from coordinator.core.overdue import Overdue
from coordinator.core.placement import PlacementLimits
from coordinator.core.registry import Registry, Worker
from coordinator.core.request import Request, State
from coordinator.core.trials import TrialLimits, Trials
from transport.wire.messages import (
    Cancel,
    Failed,
    Offer,
    PeerJoined,
    PeerLeft,
    PeerTested,
    Prefilled,
    TokenOut,
    Tokens,
    ToWorker,
    TransferDone,
)

NOT_FAULTS = frozenset({"preempted", "draining"})
TRIED_TWICE = frozenset({"not_finite", "digest_mismatch"})
"""What happens at a second worker too is the request's own doing."""


class Lifecycle:
    """All open requests. ``clock`` gives Unix seconds, for the record; ``monotonic`` seconds that
    no step of the system's clock disturbs, for every decision."""

    def __init__(
        self,
        registry: Registry,
        limits: PlacementLimits,
        clock: Callable[[], float],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        settings: HubSettings | None = None,
        trials: TrialLimits | None = None,
        max_faults: int = 4,
    ) -> None:
        self.requests: dict[str, Request] = {}
        self.stale_dropped = 0
        self._registry = registry
        self._clock = clock
        self._monotonic = monotonic
        self._max_faults = max_faults
        self._arrivals = 0
        self._orders: list[Send] = []
        self._effects: list[Effect] = []
        self._overdue = Overdue(settings or HubSettings(), self.requests)
        self._faults = Faults(registry, monotonic, lambda effect: self._effects.append(effect))
        self._trials = Trials(registry, trials or TrialLimits(), monotonic)
        self._dispatcher = Dispatcher(
            registry,
            limits,
            self._faults,
            self._trials,
            clock=clock,
            monotonic=monotonic,
            send=self._send,
            changed=self._record,
        )

    @property
    def num_queued(self) -> int:
        return self._dispatcher.num_queued

    def take_effects(self) -> list[Effect]:
        """What is to be done now. Orders first: a GPU may be idle until its order comes, and the
        rest takes its time."""
        effects = [*self._orders, *self._effects]
        self._orders, self._effects = [], []
        return effects

    # ---- the client's side

    def submit(self, generation: SequenceRequest, received_at: float) -> Request:
        assert generation.request_id not in self.requests, "a request id used twice"
        self._arrivals += 1
        now = self._monotonic()
        request = Request(generation, self._arrivals, accepted_at=now, progress_at=now)
        request.stages["received_at"] = received_at
        self.requests[request.request_id] = request
        self._enqueue(request)
        self._overdue.add(request, now)
        self._dispatcher.run()
        return request

    def stop_early(self, request: Request) -> None:
        """Its text is complete: a stop string was found."""
        if not request.state.terminal:
            self._dispatcher.take_back(request)
            request.finish_reason = "stop"
            self._end(request, State.FINISHED)
            self._dispatcher.run()

    def cancel(self, request: Request) -> None:
        """Its client is gone."""
        if not request.state.terminal:
            self._dispatcher.take_back(request)
            self._end(request, State.CANCELLED)
            self._dispatcher.run()

    def fail(self, request: Request, code: str, message: str) -> None:
        self.fail_all([request], code, message)

    def fail_all(self, requests: Iterable[Request], code: str, message: str) -> None:
        """All at once: what one of them leaves free is not given to another of them."""
        failing = [request for request in requests if not request.state.terminal]
        for request in failing:
            self._give_up(request, code, message)
        if failing:
            self._dispatcher.run()

    def tick(self) -> None:
        """What time alone brings, once a heartbeat."""
        for request, code, message in list(self._overdue.due(self._monotonic())):
            self._give_up(request, code, message)
        for request in self._trials.in_the_way():
            message = f"{request.decode_worker or request.prefill_worker} is reserved"
            self._retry(request, "preempted", message)
        self._dispatcher.run()

    # ---- workers come and go

    def introduce(self, instance: str) -> None:
        """A worker has just been welcomed: tell the peers about each other, give it work."""
        worker = self._registry.get(instance)
        if worker is None:
            return
        if worker.hello.role == "prefill":
            for decode in self._registry.of("decode"):
                self._send(decode.instance, PeerJoined(instance, worker.hello.memory))
        elif worker.hello.role == "decode":
            for prefill in self._registry.of("prefill"):
                self._send(instance, PeerJoined(prefill.instance, prefill.hello.memory))
        self._dispatcher.run()

    def hopeless(self) -> list[tuple[Worker, str]]:
        """Workers that are to be ended, and why."""
        return self._faults.hopeless()

    def worker_lost(self, instance: str, *, died: bool = True) -> None:
        """It died or fell silent, or, not ``died``, left or was sent away. A pull from a dead
        prefill worker may still succeed."""
        worker = self._registry.remove(instance)
        if worker is None:
            return
        self._faults.worker_gone(instance)
        self._trials.worker_gone(instance)
        if worker.hello.role == "prefill":
            for decode in self._registry.of("decode"):
                self._send(decode.instance, PeerLeft(instance))
        for request in list(worker.assigned.values()):
            if request.decode_worker in ("", instance):
                self._lose(request, worker, died=died)
        self._dispatcher.run()

    def peer_tested(self, instance: str, message: PeerTested) -> None:
        """A decode worker has tested the path from a prefill worker, or failed to."""
        if self._registry.get(message.instance) is None:
            self.stale_dropped += 1
            return
        now = self._monotonic()
        self._registry.pairs.report(message.instance, instance, message.problem, now)
        self._dispatcher.run()

    def reconcile(self, worker: Worker, held: set[tuple[str, int]], heartbeat_s: float) -> None:
        """Compare what a worker says it holds with what was placed there: nothing may be lost
        with a message, and nothing kept for a request that is over.

        An order may cross a heartbeat, and the next one too: it comes just after the worker has
        read its messages, and a long step follows. But the worker reads them all between any two
        heartbeats. What was sent before the last but one was here had come when the last one went
        out, and so was read before this one.
        """
        for request_id, attempt in held:
            request = worker.assigned.get(request_id)
            if request is None or request.attempt > attempt:
                self._send(worker.instance, Cancel(request_id, attempt))
        last_but_one, _ = worker.beats
        # Heartbeats that had queued up may come at any pace while we catch up.
        sent_before = min(last_but_one, self._monotonic() - 3 * heartbeat_s)
        for request in list(worker.assigned.values()):
            missing = (request.request_id, request.attempt) not in held
            if missing and request.assigned_at < sent_before:
                request.failed_at = worker.instance
                self._faults.failed(request, worker.instance, "lost_at_worker")
                self._retry(request, "lost_at_worker", f"{worker.instance} no longer has it")
        worker.note_beat(self._monotonic(), heartbeat_s)
        self._dispatcher.run()

    # ---- what workers say

    def prefilled(self, instance: str, message: Prefilled) -> None:
        token = message.token
        request = self._current(instance, token.request_id, token.attempt, State.PREFILLING)
        if request is None:
            return
        request.was_prefilled(message, self._clock())
        self._emit(request, token)
        if token.finish is None:
            self._go_on(request, message.offer)
        self._dispatcher.run()

    def transfer_done(self, instance: str, message: TransferDone) -> None:
        request = self._current(instance, message.request_id, message.attempt, State.HANDOFF)
        if request is None:
            return
        request.transfer_done(message, self._clock())
        request.state = State.DECODING
        request.progress_at = self._monotonic()
        self._registry.require(instance).landing.pop(request.request_id, None)
        self._dispatcher.release_offer(request)
        self._record(request)
        self._dispatcher.run()

    def tokens(self, instance: str, message: Tokens) -> None:
        for first in message.first_steps:
            request = self._current(instance, first.request_id, first.attempt, State.DECODING)
            if request is not None:
                request.stages["first_step_s"] = first.seconds
                request.stages["first_decode_at"] = self._clock()
                self._effects.append(HandedOff(request))
        ended = False
        for token in message.tokens:
            request = self._current(instance, token.request_id, token.attempt, State.DECODING)
            if request is None:
                continue
            self._emit(request, token)
            if request.suspect and self._trials.passes(request):
                ended = True
            ended = ended or request.state.terminal
        if ended:
            self._dispatcher.run()

    def failed(self, instance: str, message: Failed) -> None:
        request = self.requests.get(message.request_id)
        if request is None or request.attempt != message.attempt:
            if request is not None and message.code == "offer_expired":
                self._faults.offer_expired(request)
            self.stale_dropped += 1
            return
        if instance != (request.decode_worker or request.prefill_worker):
            # The prefill worker gave up an offer that a decode worker may still land.
            if instance == request.prefill_worker:
                self._dispatcher.forget_offer(request)
            else:
                self.stale_dropped += 1
            return
        self._dispatcher.unassign(request, instance)  # it has let go of it
        again = message.code in TRIED_TWICE & request.failed_with
        self._faults.failed(request, instance, message.code)
        if message.code in NOT_FAULTS and instance == request.decode_worker:
            self._leave_decode_worker(request, message.code, message.message)
        elif self._may_pull_elsewhere(request, instance, message):
            request.faults += 1
            self._leave_decode_worker(request, message.code, message.message)
        elif (message.retry and not again) or self._larger_will_be_back(request, instance, message):
            request.failed_at = instance
            self._retry(request, message.code, message.message)
        else:
            self.fail(request, message.code, message.message)
        request.failed_with.add(message.code)
        self._dispatcher.run()

    # ---- inside

    def _current(
        self, instance: str, request_id: str, attempt: int, state: State
    ) -> Request | None:
        """The request, if this worker may speak about it now."""
        request = self.requests.get(request_id)
        if request is not None and request.attempt == attempt and request.state is state:
            owner = request.prefill_worker if state is State.PREFILLING else request.decode_worker
            if owner == instance:
                return request
        self.stale_dropped += 1
        return None

    def _go_on(self, request: Request, offer: Offer | None) -> None:
        """Its prompt is done: it goes on by a handoff, or where it is."""
        if offer is None:
            request.decode_worker = request.prefill_worker
            request.state = State.DECODING
        else:
            request.offer = offer
            request.state = State.HANDOFF
            self._dispatcher.hand_off(request)
        self._dispatcher.recount(request)
        self._record(request)

    def _may_pull_elsewhere(self, request: Request, instance: str, message: Failed) -> bool:
        """Whether its copy alone did not end, for the first time: the prompt need not be computed
        again to see whether another decode worker's does."""
        if message.code != "pull_timeout" or "pull_timeout" in request.failed_with:
            return False
        offered = request.offer is not None and self._registry.get(request.prefill_worker)
        return bool(offered) and instance == request.decode_worker

    def _larger_will_be_back(self, request: Request, instance: str, message: Failed) -> bool:
        """Whether it is too long for this worker, but was not for another one that was here: it
        waits for that as for any lost worker."""
        worker = self._registry.get(instance)
        if message.code != "too_long" or worker is None:
            return False
        role = worker.hello.role
        wanted = request.num_tokens if role == "prefill" else request.max_len
        needs_len = min(wanted, self._registry.longest_seen(role))
        if needs_len <= worker.hello.max_seq_len:
            return False
        request.too_long_for, request.needs_len = role, needs_len
        return True

    def _lose(self, request: Request, worker: Worker, *, died: bool) -> None:
        """The request's worker is gone. A death with others aboard says little of any of them."""
        instance, role = worker.instance, worker.hello.role
        aboard = request.decode_worker == instance or request.state is State.PREFILLING
        request.losses += 1
        if died and aboard:
            self._trials.died(request)
        if died and aboard and worker.reserved_for is request:
            text = f"{request.deaths} {role} workers died that computed it, the last one alone"
            self._give_up(request, "poison_request", text)
        elif self._trials.too_many(request):
            text = f"gave up after {request.losses} workers were lost"
            self._give_up(request, "worker_lost", text)
        elif request.decode_worker:
            self._leave_decode_worker(request, "worker_lost", f"{instance} was lost")
        else:
            self._retry(request, "worker_lost", f"{instance} was lost")

    def _give_up(self, request: Request, code: str, message: str) -> None:
        self._dispatcher.take_back(request)
        self._end(request, State.FAILED, code, message)

    def _leave_decode_worker(self, request: Request, code: str, message: str) -> None:
        """Pull again if the prefill worker still offers the prompt, else compute it again."""
        request.failed_at = request.decode_worker
        if request.offer is not None and self._registry.get(request.prefill_worker):
            self._dispatcher.unassign(request, request.decode_worker)
            request.decode_worker = ""
            self._dispatcher.hand_off(request)
            self._record(request)
        else:
            self._retry(request, code, message)

    def _retry(self, request: Request, code: str, message: str) -> None:
        self._dispatcher.take_back(request)
        request.faults += code not in NOT_FAULTS | {"worker_lost"}
        if request.faults > self._max_faults:
            text = f"gave up after {request.faults} faults; the last: {message}"
            self._end(request, State.FAILED, code, text)
        else:
            self._enqueue(request)
            self._effects.append(PlacedAnew(request, code, message))

    def _enqueue(self, request: Request) -> None:
        request.begin_attempt(self._clock())
        self._dispatcher.enqueue(request)
        self._record(request)

    def _emit(self, request: Request, token: TokenOut) -> None:
        if token.index != len(request.output_ids):
            self.stale_dropped += 1
            return
        request.stages.setdefault("first_token_at", self._clock())
        request.output_ids.append(token.token_id)
        out = Token(token.token_id, token.logprobs, token.finish)
        self._effects.append(Emit(request, out))
        self._note_progress(request, last=token.finish is not None)
        if token.finish is not None:
            request.finish_reason = token.finish
            for instance in (request.prefill_worker, request.decode_worker):
                self._dispatcher.unassign(request, instance)
            self._end(request, State.FINISHED)
        else:
            self._dispatcher.recount(request)

    def _note_progress(self, request: Request, *, last: bool) -> None:
        request.progress_at = self._monotonic()
        self._faults.got_further(request)
        if not request.proved and (last or request.state is State.DECODING):
            self._faults.worked(request)

    def _end(self, request: Request, state: State, code: str = "", message: str = "") -> None:
        request.state = state
        request.code, request.message = code, message
        request.stages["ended_at"] = self._clock()
        del self.requests[request.request_id]
        self._faults.forget(request)
        self._record(request)
        self._effects.append(Ended(request))

    def _send(self, instance: str, message: ToWorker) -> None:
        self._orders.append(Send(instance, message))

    def _record(self, request: Request) -> None:
        request.revision += 1
        self._effects.append(Recorded(request))
