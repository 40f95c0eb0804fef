"""The decode worker's loop body. Queues a request passes through here:

1 transfer.pending     its cache still lies with the prefill worker
2 transfer.receiving   the copy stream writes its pages and state slot
3 scheduler.running     takes part in every step
4 launched              steps the engine is computing
5 scheduler.retiring    ended; waits for its last launched step
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import assert_never

from decode.scheduler import DecodeScheduler
from decode.transfers import KVTransfer, KVTransferQueue
from engine import request_log
from engine.batch import ForwardBatch
from engine.cache.capacity import too_long
from engine.cache.publish import allocator_for
from engine.runner import Engine, Step
from engine.sequence import Scheduled, Sequence, attempts_up_to
from transport.copy.digest import digest
from transport.copy.pull import CopyStream
from transport.copy.selftest import probe_peer
from transport.wire.errors import LayoutMismatch, PeerGone, StaleEpoch
from transport.wire.messages import (
    Cancel,
    Decode,
    Failed,
    FailureCode,
    FirstStep,
    Generate,
    MemoryExport,
    Offer,
    PeerJoined,
    PeerLeft,
    PeerTested,
    Prefill,
    Release,
    Tokens,
    WorkerGauges,
)
from transport.wire.session import Session, Work

log = logging.getLogger(__name__)

IDLE_S = 60.0
COPY_WAIT_S = 0.05
COPY_PATIENCE_S = 0.001
"""How long a step is put off for copies just begun. Most take less, and then their sequences join
this very step; a copy that is missed waits for a whole one."""


class DecodeWorker:
    """Pulls finished prompts and decodes them, all together, one token a step."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        puller: CopyStream,
        *,
        pull_timeout_s: float,
        lookahead: int,
        verify_handoff: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._session = session
        self._lookahead = lookahead
        self._verify_handoff = verify_handoff
        self._clock = clock
        self._allocator = allocator_for(engine)
        self._puller = puller
        self._transfers = KVTransferQueue(
            self._allocator, engine.layout, puller, pull_timeout_s, clock
        )
        self._scheduler = DecodeScheduler(
            self._allocator, engine.layout, self._reclaim, self._transfers.num_pages_coming
        )
        self._stalled = False
        self._launched: deque[tuple[Scheduled, Step]] = deque()
        self._stale_dropped = 0

    def step(self) -> None:
        self._admit()
        scheduled = self._scheduler.schedule()
        for sequence, code, problem, retry in self._scheduler.take_given_up():
            self._fail(sequence, code, problem, retry=retry)
        if scheduled is not None:
            step = self._engine.launch(ForwardBatch(scheduled.rows))
            self._launched.append((scheduled, step))
        self._stalled = not self._launched
        while len(self._launched) > (self._lookahead if scheduled else 0):
            self._process(*self._launched.popleft())

    def handle(self, message: Work) -> None:
        match message:
            case Decode():
                self._accept(message)
            case Cancel(request_id=request_id, attempt=attempt):
                self._stale_dropped += not self._cancel(request_id, attempt)
            case PeerJoined(instance=instance, memory=memory):
                self._session.send(self._meet(instance, memory))
            case PeerLeft(instance=instance):
                self._lose_peer(instance)
            case Prefill() | Generate() | Release():
                raise AssertionError(f"a decode worker was sent {type(message).__name__}")
            case _:
                assert_never(message)

    def wait_s(self) -> float:
        has_work = self._scheduler.has_work
        if not self._launched and self._transfers.receiving and (self._stalled or not has_work):
            self._transfers.wait_for_copies(COPY_WAIT_S)
            return 0.0
        return 0.0 if self._launched or has_work else IDLE_S

    def held(self) -> tuple[tuple[str, int], ...]:
        sequences = [*self._transfers.sequences(), *self._scheduler.running]
        return tuple(sequence.key for sequence in sequences)

    @property
    def ready(self) -> bool:
        """Whether there is somebody to pull from."""
        return self._transfers.has_peers

    @property
    def empty(self) -> bool:
        queues = self._transfers.pending, self._transfers.receiving, self._scheduler.running
        return not any(queues) and not self._launched

    def gauges(self) -> WorkerGauges:
        return WorkerGauges(
            free_pages=self._allocator.free_pages,
            free_state_slots=self._allocator.free_state_slots,
            running=len(self._scheduler.running),
            waiting=len(self._transfers.pending) + len(self._transfers.receiving),
            retiring_slots=len(self._scheduler.retiring),
            stale_dropped=self._stale_dropped,
            accounting_error=self._allocator.check(),
        )

    def drop_all(self) -> None:
        for sequence in self._transfers.sequences():
            self._transfers.cancel(*sequence.key)
        for sequence in list(self._scheduler.running):
            self._scheduler.end(sequence)
        self._transfers.drop_peers()

    def give_back(self) -> None:
        for sequence in [*self._transfers.sequences(), *self._scheduler.running]:
            self._fail(sequence, "draining", "the worker is shutting down", retry=True)
        self.drop_all()

    def close(self) -> None:
        """Wait for the copy under way, so that nothing writes the cache any more."""
        if not self._puller.close():
            log.error("a copy from a peer has not ended: this process may hang on its GPU")

    def _meet(self, instance: str, memory: MemoryExport) -> PeerTested:
        """Open a peer's memory and test the path from there; a bad one is closed again.

        The loop stands still meanwhile, for some milliseconds, once for each peer that joins.
        """
        try:
            self._transfers.add_peer(instance, memory)
        except (PeerGone, LayoutMismatch) as error:
            log.error("cannot pull from %s: %s", instance, error)
            return PeerTested(instance, problem=str(error))
        test = probe_peer(self._puller, self._engine.cache, instance)
        if test.problem:
            log.error("cannot pull from %s: %s", instance, test.problem)
            self._lose_peer(instance)
        elif test.slow(memory.kind):
            log.warning(
                "pulling from %s is slow: %.1f GB/s; see `nvidia-smi topo -m`, `baton doctor`",
                instance, test.bytes_per_s / 1e9,
            )  # fmt: skip
        else:
            log.info("tested %s: %.1f GB/s", instance, test.bytes_per_s / 1e9)
        return PeerTested(instance, test.num_bytes, test.seconds, test.problem)

    def _lose_peer(self, instance: str) -> None:
        for sequence in self._transfers.drop_peer(instance):
            self._fail(sequence, "peer_gone", f"{instance} left", retry=True)

    def _accept(self, message: Decode) -> None:
        sequence = Sequence.of(message, self._clock())
        sequence.num_cached = message.offer.num_tokens
        self._cancel(sequence.request_id, sequence.attempt - 1)
        problem = too_long(message.offer.num_tokens + 1, self._engine.layout, self._allocator.size)
        if problem:
            self._fail(sequence, "too_long", problem, retry=False)
            return
        try:
            self._transfers.add(sequence, message.offer, self._session.in_socket_s)
        except PeerGone as error:
            self._fail(sequence, "peer_gone", str(error), retry=True)

    def _cancel(self, request_id: str, attempt: int) -> bool:
        """End what there is of the request up to ``attempt``; False if there was nothing."""
        running = attempts_up_to(self._scheduler.running, request_id, attempt)
        for sequence in running:
            self._scheduler.end(sequence)
        found = self._transfers.cancel(request_id, attempt) + running
        for sequence in found:
            request_log.dropped(sequence)
        return bool(found)

    def _admit(self) -> None:
        if self._transfers.start_pulls(num_running=len(self._scheduler.running)):
            self._transfers.wait_for_copies(COPY_PATIENCE_S)
        for transfer in self._transfers.done():
            self._finish_transfer(transfer)
        for sequence in self._transfers.overdue(self._clock()):
            sequence.ended = True
            self._fail(sequence, "pull_timeout", "the copy did not finish in time", retry=True)
        for sequence, num_stuck in self._transfers.without_room(self._clock()):
            self._give_back_without_room(sequence, num_stuck)

    def _give_back_without_room(self, sequence: Sequence, num_stuck: int) -> None:
        """No room came in time: it is this worker's fault only if its copies do not end."""
        sequence.ended = True
        if num_stuck:
            message = f"no room came: {num_stuck} pages are held by copies that do not end"
            self._fail(sequence, "pull_timeout", message, retry=True)
        else:
            self._fail(sequence, "preempted", "no room came in time", retry=True)

    def _finish_transfer(self, transfer: KVTransfer) -> None:
        sequence, offer, pull = transfer.sequence, transfer.offer, transfer.pull
        assert pull is not None, "transferred without a pull"
        try:
            copied = pull.result()
        except StaleEpoch as error:
            self._stale_dropped += 1
            if not sequence.ended:
                self._fail(sequence, "stale_offer", str(error), retry=True)
            sequence.ended = True
        if sequence.ended:
            self._transfers.release(sequence)
            return
        if problem := self._unverified(sequence, offer):
            self._fail(sequence, "digest_mismatch", problem, retry=True)
            self._transfers.release(sequence)
            return
        self._engine.bind(sequence.binding())
        self._scheduler.add(sequence)
        sequence.transferred_at = self._clock()
        told = transfer.done(copied, sequence.transferred_at)
        self._session.send(told)
        request_log.transferred(sequence, told, offer.instance, verified=bool(offer.digest))

    def _unverified(self, sequence: Sequence, offer: Offer) -> str:
        """What is wrong with what has landed, or that nobody can tell; else empty."""
        if not offer.digest:
            return f"no digest came from {offer.instance}" if self._verify_handoff else ""
        same = offer.digest == self._digest(sequence, offer.num_tokens)
        return "" if same else f"the cache changed on its way from {offer.instance}"

    def _digest(self, sequence: Sequence, num_tokens: int) -> str:
        assert sequence.allocation is not None, "transferred without pages"
        allocation = sequence.allocation
        num_pages = self._engine.layout.pages_for(num_tokens)
        pages = tuple(allocation.pages[:num_pages])
        return digest(self._engine.cache, pages, allocation.slot.id, num_tokens)

    def _reclaim(self, arrival: int) -> bool:
        """Let the youngest that is being pulled give way, if it is younger than ``arrival``."""
        sequence = self._transfers.reclaim(arrival)
        if sequence is None:
            return False
        self._fail(sequence, "preempted", "out of pages", retry=True)
        return True

    def _process(self, scheduled: Scheduled, step: Step) -> None:
        result = step.result()
        first_steps = self._first_steps(scheduled)
        tokens, broken = self._scheduler.take_in(scheduled, result)
        for sequence in broken:
            self._fail(sequence, "not_finite", "the logits were not finite", retry=True)
        if tokens:
            self._session.send(Tokens(tuple(tokens), first_steps))
        request_log.finished(scheduled, tokens)

    def _first_steps(self, scheduled: Scheduled) -> tuple[FirstStep, ...]:
        """For which sequences the step that has just ended was the first."""
        found = []
        for sequence in scheduled.sequences:
            if sequence.transferred_at is not None and not sequence.ended:
                found.append(FirstStep(*sequence.key, self._clock() - sequence.transferred_at))
                sequence.transferred_at = None
        return tuple(found)

    def _fail(self, sequence: Sequence, code: FailureCode, message: str, *, retry: bool) -> None:
        self._session.send(Failed(*sequence.key, code, message, retry))
        request_log.gave_up(sequence, code, message, retry=retry)
