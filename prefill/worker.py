"""The prefill worker's loop body. Queues a prompt passes through here:

1 scheduler.waiting   accepted, no memory yet
2 scheduler.filling   has pages and a state slot; chunks are being computed
3 launched            batches the engine is computing
4 offers              done, first token sent, readable until released
"""

import time
from collections import deque
from collections.abc import Callable
from typing import assert_never

from engine import request_log
from engine.batch import ForwardBatch, Sampled
from engine.cache.capacity import too_long
from engine.cache.publish import allocator_for
from engine.runner import Engine, Step
from engine.sequence import Scheduled, Sequence, attempts_up_to
from prefill.offers import Offers
from prefill.scheduler import PrefillLimits, PrefillScheduler
from transport.copy.digest import digest
from transport.wire.messages import (
    Cancel,
    Decode,
    Failed,
    FailureCode,
    Generate,
    Offer,
    PeerJoined,
    PeerLeft,
    Prefill,
    Prefilled,
    Release,
    TokenOut,
    WorkerGauges,
)
from transport.wire.session import Session, Work

IDLE_S = 60.0


class PrefillWorker:
    """Computes prompts, sends their first tokens, and offers their cache."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        instance: str,
        limits: PrefillLimits,
        *,
        offer_ttl_s: float,
        lookahead: int,
        verify_handoff: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._session = session
        self._instance = instance
        self._lookahead = lookahead
        self._verify_handoff = verify_handoff
        self._clock = clock
        self._allocator = allocator_for(engine)
        self._scheduler = PrefillScheduler(self._allocator, engine.layout, limits)
        self._offers = Offers(self._allocator, offer_ttl_s)
        self._launched: deque[tuple[Scheduled, Step]] = deque()
        self._stale_dropped = 0

    def step(self) -> None:
        scheduled = self._scheduler.schedule()
        if scheduled is not None:
            self._launched.append((scheduled, self._launch(scheduled)))
        while len(self._launched) > (self._lookahead if scheduled else 0):
            self._process(*self._launched.popleft())
        for sequence in self._offers.expire(self._clock()):
            self._fail(sequence, "offer_expired", "nobody pulled the offer in time", retry=True)

    def handle(self, message: Work) -> None:
        match message:
            case Prefill():
                self._accept(Sequence.of(message, self._clock()))
            case Cancel(request_id=request_id, attempt=attempt):
                self._stale_dropped += not self._cancel(request_id, attempt)
            case Release(request_id=request_id, attempt=attempt, epoch=epoch):
                released = self._offers.release(request_id, attempt, epoch)
                self._stale_dropped += not released
            case Decode() | Generate() | PeerJoined() | PeerLeft():
                raise AssertionError(f"a prefill worker was sent {type(message).__name__}")
            case _:
                assert_never(message)

    def wait_s(self) -> float:
        return 0.0 if self._scheduler.has_work or self._launched else IDLE_S

    def held(self) -> tuple[tuple[str, int], ...]:
        active = [sequence.key for sequence in self._scheduler.sequences()]
        return (*active, *self._offers.keys())

    @property
    def ready(self) -> bool:
        return True

    @property
    def empty(self) -> bool:
        return not self._scheduler.sequences() and not self._launched and not len(self._offers)

    def gauges(self) -> WorkerGauges:
        return WorkerGauges(
            free_pages=self._allocator.free_pages,
            free_state_slots=self._allocator.free_state_slots,
            running=len(self._scheduler.filling),
            waiting=len(self._scheduler.waiting),
            retiring_slots=len(self._scheduler.retiring),
            offered=len(self._offers),
            stale_dropped=self._stale_dropped,
            accounting_error=self._allocator.check(),
        )

    def drop_all(self) -> None:
        for sequence in self._scheduler.sequences():
            self._scheduler.end(sequence)
        self._offers.withdraw_all()

    def give_back(self) -> None:
        for sequence in self._scheduler.sequences():
            self._scheduler.end(sequence)
            self._fail(sequence, "draining", "the worker is shutting down", retry=True)
        for sequence in self._offers.withdraw_all():
            self._fail(sequence, "draining", "the worker is shutting down", retry=True)

    def close(self) -> None:
        """Nothing to wait for: only this loop writes the cache."""

    def _accept(self, sequence: Sequence) -> None:
        self._cancel(sequence.request_id, sequence.attempt - 1)
        problem = too_long(len(sequence.token_ids), self._engine.layout, self._allocator.size)
        if problem:
            self._fail(sequence, "too_long", problem, retry=False)
        else:
            self._scheduler.add(sequence)

    def _cancel(self, request_id: str, attempt: int) -> bool:
        """End what there is of the request up to ``attempt``; False if there was nothing."""
        found = attempts_up_to(self._scheduler.sequences(), request_id, attempt)
        for sequence in found:
            self._scheduler.end(sequence)
            request_log.dropped(sequence)
        return self._offers.withdraw(request_id, attempt) or bool(found)

    def _launch(self, scheduled: Scheduled) -> Step:
        for row, sequence in zip(scheduled.rows, scheduled.sequences, strict=True):
            if row.start == 0:
                sequence.started_at = self._clock()
                self._engine.bind(sequence.binding())
        return self._engine.launch(ForwardBatch(scheduled.rows))

    def _process(self, scheduled: Scheduled, step: Step) -> None:
        for sequence, sampled in self._scheduler.retire(scheduled, step.result()):
            self._finish(sequence, sampled)

    def _finish(self, sequence: Sequence, sampled: Sampled) -> None:
        if sampled.token_id is None:
            self._scheduler.end(sequence)
            self._fail(sequence, "not_finite", "the logits were not finite", retry=True)
            return
        num_cached = len(sequence.token_ids)
        token = sequence.append(sampled)
        if token.finish is not None:
            self._scheduler.end(sequence)
            self._report(sequence, token, None)
            return
        self._report(sequence, token, self._offer(sequence, num_cached))
        self._offers.add(sequence, self._clock())

    def _offer(self, sequence: Sequence, num_cached: int) -> Offer:
        allocation = sequence.allocation
        assert allocation is not None, "offered without pages"
        pages = tuple(allocation.pages)
        verified = self._verify_handoff
        return Offer(
            instance=self._instance,
            block_table=pages,
            state_slot=allocation.slot.id,
            epoch=allocation.slot.epoch,
            num_tokens=num_cached,
            digest=digest(self._engine.cache, pages, allocation.slot.id, num_cached)
            if verified
            else "",
        )

    def _report(self, sequence: Sequence, token: TokenOut, offer: Offer | None) -> None:
        told = Prefilled(
            token=token,
            offer=offer,
            wait_s=sequence.started_at - sequence.received_at,
            prefill_s=self._clock() - sequence.started_at,
        )
        self._session.send(told)
        request_log.prefilled(sequence, told)

    def _fail(self, sequence: Sequence, code: FailureCode, message: str, *, retry: bool) -> None:
        self._session.send(Failed(*sequence.key, code, message, retry))
        request_log.gave_up(sequence, code, message, retry=retry)
