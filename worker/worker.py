"""The loop body of every worker. Queues a request passes through here:

1 prompts.waiting      accepted, no memory yet
2 prompts.filling      has pages and a state slot; chunks are being computed
3 offers               (Prefill) done, first token sent, readable by a decode worker until released
4 transfers            (Decode) its cache is pulled from a prefill worker (handoff.py)
5 sequences.running    takes part in every decode step
6 launched             batches the engine is computing
7 sequences.retiring   ended; waits for its last launched step

The order decides the way: ``Prefill`` takes 1, 2, 3; ``Decode`` 4, 5; ``Generate`` 1, 2, 5 in the
same pages and state slot.

A round is a decode step of all that run, then a bounded batch of prompts: two batches and not a
mixed one, so that a token is computed by the same kernels whatever else arrives. What the queues
share is memory: a prompt or a transfer is admitted only while a page is left for every sequence
that will grow, and when pages run out the youngest of them is preempted before an older running
sequence.
"""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import assert_never

from colocated.limits import ColocatedLimits
from decode.scheduler import DecodeScheduler
from decode.speculation import DraftPolicy
from engine.cache.allocator import too_long
from engine.cache.publish import allocator_for
from engine.runner import Engine
from engine.sequence import Scheduled, Sequence, attempts_up_to
from engine.step import Step
from prefill.offers import Offers
from prefill.scheduler import PrefillScheduler
from transport.copy.host_copy import HostCopier, NoHostMemory
from transport.copy.pull import CopyStream
from transport.wire.messages import (
    Cancel,
    Decode,
    Generate,
    PeerJoined,
    PeerLeft,
    Prefill,
    Release,
    Role,
)
from transport.wire.reports import WorkerGauges
from transport.wire.session import ORDERS, Session, Work
from worker.handoff import COPY_WAIT_S, Pulling, first_steps, offer_of
from worker.prefixes import Prefixes
from worker.reports import Reports
from worker.room import Room
from worker.settings import HandoffSettings, PrefixCacheSettings

IDLE_S = 60.0
SAVING_S = 0.01
"""How long a wait for a message may be while host memory is being written, which takes as long."""

Process = Callable[[Scheduled, Step], None]


class Worker:
    """Computes prompts and decodes sequences, as the coordinator's orders say."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        role: Role,
        instance: str,
        limits: ColocatedLimits,
        handoff: HandoffSettings,
        puller: CopyStream,
        *,
        lookahead: int,
        drafts: DraftPolicy | None = None,
        prefix_cache: PrefixCacheSettings | None = None,
        host: HostCopier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._session = session
        self._role = role
        self._limits = limits
        self._offer_of = partial(offer_of, instance, engine.cache, verified=handoff.verify)
        self._lookahead = lookahead
        self._clock = clock
        self._reports = Reports(session.send)
        self._allocator = allocator_for(engine)
        self._offers = Offers(self._allocator, handoff.offer_ttl_s)
        self._pulling = Pulling(engine, self._allocator, puller, self._reports, handoff, clock)
        self._transfers = self._pulling.transfers
        self._prefixes = prefixes = Prefixes(
            engine, self._allocator, puller, self._transfers.peers, instance, handoff, clock,
            prefix_cache or PrefixCacheSettings(), host or NoHostMemory(),
        )  # fmt: skip
        self._room = room = Room(self._transfers, self._preempt)
        self._sequences = room.sequences = DecodeScheduler(
            self._allocator, engine.layout, room.reclaim, room.num_coming, drafts,
            prefixes.keep_answer,
        )  # fmt: skip
        self._prompts = room.prompts = PrefillScheduler(
            self._allocator, engine.layout, limits.prompts, room.num_beside_prompts,
            prefixes.reuse, prefixes.pulls,
        )  # fmt: skip
        self._launched: deque[tuple[Scheduled, Step, Process]] = deque()
        self._stalled = False
        self._stale_dropped = 0

    # ---- one round

    def step(self) -> None:
        """Schedule, launch, process the previous result; returns at once without work."""
        self._prefixes.host.poll()
        for sequence in self._pulling.arrived(num_growing=self._room.num_beside_transfers()):
            self._sequences.add(sequence)
        decode = self._sequences.schedule()
        for given_up in self._sequences.take_given_up():
            self._reports.failed(*given_up)
        self._launch(decode, self._process_tokens)
        for sequence, problem in self._prompts.pulled():
            self._reports.failed(sequence, "pull_timeout", problem)
        num_running, num_waiting = len(self._sequences.running), len(self._prompts.sequences())
        most = self._limits.max_tokens(num_running=num_running, num_waiting=num_waiting)
        prompts = self._prompts.schedule(most)
        self._launch(prompts, self._process_prompts)
        idle = decode is None and prompts is None
        self._stalled = idle and not self._launched
        if idle:
            self._process(behind=0)
        for sequence in self._offers.expire(self._clock()):
            self._reports.failed(sequence, "offer_expired", "no worker pulled the offer in time")

    def _launch(self, scheduled: Scheduled | None, process: Process) -> None:
        """Launch a batch, and process those that are now further behind than the lookahead."""
        if scheduled is None:
            return
        for row, sequence in zip(scheduled.rows, scheduled.sequences, strict=True):
            if row.token_ids is not None and not sequence.begun:
                sequence.begun, sequence.started_at = True, self._clock()
                self._engine.bind(sequence.binding())
                self._prefixes.begin(sequence)
        step = self._engine.launch(scheduled.batch)
        self._launched.append((scheduled, step, process))
        self._process(behind=self._lookahead)

    def _process(self, *, behind: int) -> None:
        while len(self._launched) > behind:
            scheduled, step, process = self._launched.popleft()
            process(scheduled, step)

    def _process_tokens(self, scheduled: Scheduled, step: Step) -> None:
        result = step.result()
        first = first_steps(scheduled, self._clock())
        tokens, broken = self._sequences.take_in(scheduled, result)
        for sequence, error in broken:
            if not error:
                self._prompts.doubt(sequence)
            self._reports.no_token(sequence, error)
        self._reports.tokens(scheduled, tokens, first)

    def _process_prompts(self, scheduled: Scheduled, step: Step) -> None:
        result = step.result()
        for sequence in self._reports.prompt_logprobs(scheduled, result):
            self._prompts.end(sequence)
            self._reports.no_token(sequence, "")
        for sequence, sampled in self._prompts.retire(scheduled, result):
            if sampled.token_id is None:
                if not sampled.error:
                    self._prompts.doubt(sequence)
                self._prompts.end(sequence)
                self._reports.no_token(sequence, sampled.error)
                continue
            token = sequence.append(sampled)
            hands_off = sequence.hands_off and token.finish is None
            offer = self._offer_of(sequence) if hands_off else None
            self._reports.prefilled(sequence, token, offer, self._clock())
            if token.finish is not None:
                self._prompts.end(sequence)
            elif offer is not None:
                self._offers.add(sequence, self._clock())
            else:
                self._sequences.add(sequence)

    # ---- requests come and go

    def handle(self, message: Work) -> None:
        orders = ORDERS[self._role]
        assert isinstance(message, orders), f"{self._role} was sent {type(message).__name__}"
        match message:
            case Prefill() | Decode() | Generate():
                self._accept(message)
            case Cancel(request_id=request_id, attempt=attempt):
                self._stale_dropped += not self._cancel(request_id, attempt)
            case Release(request_id=request_id, attempt=attempt, epoch=epoch):
                released = self._offers.release(request_id, attempt, epoch)
                self._stale_dropped += not released
            case PeerJoined(instance=instance, memory=memory):
                self._session.send(self._pulling.meet(instance, memory))
            case PeerLeft(instance=instance):
                self._pulling.lose(instance)
            case _:
                assert_never(message)

    def _accept(self, message: Prefill | Decode | Generate) -> None:
        sequence = Sequence.of(message, self._clock())
        self._cancel(sequence.request_id, sequence.attempt - 1)
        problem = too_long(sequence.num_tokens, self._engine.layout, self._allocator.size)
        if problem:
            self._reports.failed(sequence, "too_long", problem, retry=False)
            return
        self._engine.prepare(sequence.sampling)
        self._prefixes.name(sequence)
        if isinstance(message, Decode):
            self._pulling.add(sequence, message.offer, self._session.in_socket_s)
        else:
            self._prompts.add(sequence)

    def _cancel(self, request_id: str, attempt: int) -> bool:
        """End what there is of the request up to ``attempt``; False if there was nothing."""
        found = attempts_up_to(self._room.active(), request_id, attempt)
        for sequence in found:
            self._room.end(sequence)
            self._reports.dropped(sequence)
        return self._offers.withdraw(request_id, attempt) or bool(found)

    def _preempt(self, sequence: Sequence) -> None:
        self._room.end(sequence)
        self._reports.failed(sequence, "preempted", "out of pages")

    def drop_all(self) -> None:
        """The coordinator is gone: end every request without a word."""
        for sequence in self._room.active():
            self._room.end(sequence)
        self._offers.withdraw_all()
        self._transfers.drop_peers()
        self._prefixes.forget_told()

    def tell(self) -> None:
        """Tell the coordinator which prefixes are kept, where that has changed."""
        self._prefixes.tell(self._session.send)

    def give_back(self) -> None:
        """The drain's deadline: report every request as failed, to be retried elsewhere."""
        for sequence in [*self._room.active(), *self._offers.sequences()]:
            self._reports.failed(sequence, "draining", "the worker is shutting down")
        self.drop_all()

    def close(self) -> None:
        """Nothing writes the cache after this."""
        self._pulling.close()
        self._prefixes.close()

    # ---- what the life around it asks (loop.py)

    def wait_s(self) -> float:
        """How long the loop may sleep for a message: 0 with work at hand."""
        has_work = self._sequences.has_work or self._prompts.has_work
        copying = self._transfers.receiving or self._prefixes.pulls.under_way
        if not self._launched and copying and (self._stalled or not has_work):
            self._transfers.wait_for_copies(COPY_WAIT_S)
            self._prefixes.pulls.wait(COPY_WAIT_S)
            return 0.0
        if self._launched or has_work:
            return 0.0
        return SAVING_S if self._prefixes.host.copying else IDLE_S

    def held(self) -> tuple[tuple[str, int], ...]:
        """(request id, attempt) of every request not ended here."""
        return tuple(sequence.key for sequence in [*self._room.active(), *self._offers.sequences()])

    @property
    def ready(self) -> bool:
        """Whether it can take part in serving: a decode worker, once it has a peer to pull from or
        prompts to compute itself."""
        return self._role != "decode" or self._transfers.has_peers or bool(self._room.active())

    @property
    def empty(self) -> bool:
        """Whether nothing is under way or waits."""
        copying = self._transfers.receiving or self._prefixes.pulls.under_way
        return not (self._room.active() or self._launched or copying or len(self._offers))

    def gauges(self) -> WorkerGauges:
        transfers = self._transfers
        return WorkerGauges(
            free_pages=self._allocator.free_pages,
            free_state_slots=self._allocator.free_state_slots,
            running=len(self._prompts.filling) + len(self._sequences.running),
            waiting=len(self._prompts.waiting) + len(transfers.pending) + len(transfers.receiving),
            retiring_slots=len(self._prompts.retiring) + len(self._sequences.retiring),
            offered=len(self._offers),
            stale_dropped=self._stale_dropped + self._pulling.stale_dropped,
            accounting_error=self._allocator.check() or self._prefixes.host.check(),
            drafts=self._sequences.draft_counts,
            prefix=self._prefixes.counts(),
        )
