"""The loop body of a worker that prefills and decodes. Queues a request passes through here:

1 prompts.waiting     accepted, no memory yet
2 prompts.filling     has pages and a state slot; chunks are being computed
3 sequences.running   first token sent; takes part in every step, in the same pages and slot
4 launched            batches the engine is computing
5 sequences.retiring  ended; waits for its last launched step

A round is a decode step of all that run, then a bounded batch of prompts: two batches and not a
mixed one, so that a token is computed by the same kernels as on a decode worker, whatever else
arrives. What the two queues share is memory: a prompt is admitted only while a page is left for
every running sequence, and when pages run out, prompts give way to older sequences first.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import assert_never

from colocated.limits import ColocatedLimits
from decode.scheduler import DecodeScheduler
from engine import request_log
from engine.batch import ForwardBatch, Sampled
from engine.cache.capacity import too_long
from engine.cache.publish import allocator_for
from engine.runner import Engine, Step
from engine.sequence import Scheduled, Sequence, attempts_up_to, youngest_since
from prefill.scheduler import PrefillScheduler
from transport.wire.messages import (
    Cancel,
    Decode,
    Failed,
    FailureCode,
    Generate,
    PeerJoined,
    PeerLeft,
    Prefill,
    Prefilled,
    Release,
    Tokens,
    WorkerGauges,
)
from transport.wire.session import Session, Work

IDLE_S = 60.0

TakeIn = Callable[[Scheduled, Step], None]


class ColocatedWorker:
    """Computes prompts and decodes them in place; nothing is handed off."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        limits: ColocatedLimits,
        *,
        lookahead: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._session = session
        self._limits = limits
        self._lookahead = lookahead
        self._clock = clock
        self._allocator = allocator_for(engine)
        self._sequences = DecodeScheduler(
            self._allocator, engine.layout, self._reclaim, lambda: self._prompts.num_retiring_pages
        )
        self._prompts = PrefillScheduler(
            self._allocator, engine.layout, limits.prompts, lambda: len(self._sequences.running)
        )
        self._launched: deque[tuple[Scheduled, Step, TakeIn]] = deque()
        self._stale_dropped = 0

    def step(self) -> None:
        decode = self._sequences.schedule()
        for sequence, code, problem, retry in self._sequences.take_given_up():
            self._fail(sequence, code, problem, retry=retry)
        self._launch(decode, self._take_tokens)
        max_tokens = self._limits.max_tokens(
            num_running=len(self._sequences.running), num_waiting=len(self._prompts.sequences())
        )
        prompts = self._prompts.schedule(max_tokens)
        self._launch(prompts, self._take_prompts)
        if decode is None and prompts is None:
            self._take_in(behind=0)

    def handle(self, message: Work) -> None:
        match message:
            case Generate():
                self._accept(Sequence.of(message, self._clock()))
            case Cancel(request_id=request_id, attempt=attempt):
                self._stale_dropped += not self._cancel(request_id, attempt)
            case Prefill() | Decode() | Release() | PeerJoined() | PeerLeft():
                raise AssertionError(f"a worker of both was sent {type(message).__name__}")
            case _:
                assert_never(message)

    def wait_s(self) -> float:
        busy = self._launched or self._prompts.has_work or self._sequences.has_work
        return 0.0 if busy else IDLE_S

    def held(self) -> tuple[tuple[str, int], ...]:
        return tuple(sequence.key for sequence in self._active())

    @property
    def ready(self) -> bool:
        return True

    @property
    def empty(self) -> bool:
        return not self._active() and not self._launched

    def gauges(self) -> WorkerGauges:
        return WorkerGauges(
            free_pages=self._allocator.free_pages,
            free_state_slots=self._allocator.free_state_slots,
            running=len(self._prompts.filling) + len(self._sequences.running),
            waiting=len(self._prompts.waiting),
            retiring_slots=len(self._prompts.retiring) + len(self._sequences.retiring),
            stale_dropped=self._stale_dropped,
            accounting_error=self._allocator.check(),
        )

    def drop_all(self) -> None:
        for sequence in self._active():
            self._end(sequence)

    def give_back(self) -> None:
        for sequence in self._active():
            self._end(sequence)
            self._fail(sequence, "draining", "the worker is shutting down", retry=True)

    def close(self) -> None:
        """Nothing to wait for: only this loop writes the cache."""

    # ---- one round

    def _launch(self, scheduled: Scheduled | None, take_in: TakeIn) -> None:
        """Launch a batch, and take in those that are now further behind than the lookahead."""
        if scheduled is None:
            return
        for row, sequence in zip(scheduled.rows, scheduled.sequences, strict=True):
            if row.start == 0:
                sequence.started_at = self._clock()
                self._engine.bind(sequence.binding())
        step = self._engine.launch(ForwardBatch(scheduled.rows))
        self._launched.append((scheduled, step, take_in))
        self._take_in(behind=self._lookahead)

    def _take_in(self, *, behind: int) -> None:
        while len(self._launched) > behind:
            scheduled, step, take_in = self._launched.popleft()
            take_in(scheduled, step)

    def _take_tokens(self, scheduled: Scheduled, step: Step) -> None:
        tokens, broken = self._sequences.take_in(scheduled, step.result())
        for sequence in broken:
            self._fail_not_finite(sequence)
        if tokens:
            self._session.send(Tokens(tuple(tokens)))
        request_log.finished(scheduled, tokens)

    def _take_prompts(self, scheduled: Scheduled, step: Step) -> None:
        for sequence, sampled in self._prompts.retire(scheduled, step.result()):
            self._begin(sequence, sampled)

    def _begin(self, sequence: Sequence, sampled: Sampled) -> None:
        """A prompt is done: its first token goes out, and it runs on unless that was the last."""
        if sampled.token_id is None:
            self._prompts.end(sequence)
            self._fail_not_finite(sequence)
            return
        token = sequence.append(sampled)
        wait_s = sequence.started_at - sequence.received_at
        prefill_s = self._clock() - sequence.started_at
        told = Prefilled(token, None, wait_s, prefill_s)
        self._session.send(told)
        request_log.prefilled(sequence, told)
        if token.finish is None:
            self._sequences.add(sequence)
        else:
            self._prompts.end(sequence)

    # ---- requests come and go

    def _accept(self, sequence: Sequence) -> None:
        self._cancel(sequence.request_id, sequence.attempt - 1)
        problem = too_long(len(sequence.token_ids), self._engine.layout, self._allocator.size)
        if problem:
            self._fail(sequence, "too_long", problem, retry=False)
        else:
            self._prompts.add(sequence)

    def _active(self) -> list[Sequence]:
        return [*self._prompts.sequences(), *self._sequences.running]

    def _cancel(self, request_id: str, attempt: int) -> bool:
        """End what there is of the request up to ``attempt``; False if there was nothing."""
        found = attempts_up_to(self._active(), request_id, attempt)
        for sequence in found:
            self._end(sequence)
            request_log.dropped(sequence)
        return bool(found)

    def _end(self, sequence: Sequence) -> None:
        if sequence in self._sequences.running:
            self._sequences.end(sequence)
        else:
            self._prompts.end(sequence)

    def _reclaim(self, arrival: int) -> bool:
        """End the youngest prompt that holds pages, if it is younger than ``arrival``."""
        youngest = youngest_since(self._prompts.filling, arrival)
        if youngest is None:
            return False
        self._prompts.end(youngest)
        self._fail(youngest, "preempted", "out of pages", retry=True)
        return True

    def _fail_not_finite(self, sequence: Sequence) -> None:
        self._fail(sequence, "not_finite", "the logits were not finite", retry=True)

    def _fail(self, sequence: Sequence, code: FailureCode, message: str, *, retry: bool) -> None:
        self._session.send(Failed(*sequence.key, code, message, retry))
        request_log.gave_up(sequence, code, message, retry=retry)
