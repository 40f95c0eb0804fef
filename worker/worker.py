"""The loop body of every worker. Queues a request passes through here:

1 prompts.waiting      Accepted, no memory yet.
2 prompts.filling      It has pages and a state slot; chunks are being computed.
3 offers               (Prefill) Done, first token sent; a decode worker can read it.
4 transfers            (Decode) Its cache is pulled from a prefill worker (handoff.py).
5 sequences.running    It takes part in every decode step.
6 launches             Batches that the engine computes (decode_steps.py, prompt_batches.py).
7 sequences.retiring   Ended; it waits for its last launched step.

The order (orders.py) decides the way: ``Prefill`` takes 1, 2, 3; ``Decode`` 4, 5; ``Generate`` 1,
2, 5 in the same pages and state slot.

A round is a decode step of all that run, then a bounded batch of prompts: two batches and not a
mixed one, so that a token is computed by the same kernels whatever else arrives. What the queues
share is memory: a prompt or a transfer is admitted only while a page is left for every sequence
that will grow, and when pages run out the youngest of them is preempted before an older running
sequence.
"""

import time
from collections.abc import Callable
from functools import partial

from colocated.limits import ColocatedLimits
from decode.scheduler import DecodeScheduler
from decode.speculation import DraftPolicy
from engine.batch import StepResult
from engine.cache.publish import allocator_for
from engine.runner import Engine
from engine.sequence import Scheduled
from prefill.offers import Offers
from prefill.scheduler import PrefillScheduler
from transport.copy.host_copy import HostCopier, NoHostMemory
from transport.copy.pull import CopyStream
from transport.wire.messages import Role
from transport.wire.reports import WorkerGauges
from transport.wire.session import Session, Work
from worker.compilations import Compilations
from worker.decode_steps import DecodeSteps
from worker.handoff import COPY_WAIT_S, Pulling, first_steps, offer_of
from worker.launches import Launches
from worker.orders import Orders
from worker.prefixes import Prefixes
from worker.prompt_batches import PromptBatches
from worker.reports import Reports
from worker.room import Room
from worker.settings import HandoffSettings, PrefixCacheSettings
from worker.spread.group import Alone, Group

IDLE_S = 60.0
SAVING_S = 0.01
"""How long a wait for a message may be while host memory is being written, which takes as long."""


class Worker:
    """Computes prompts and decodes sequences, as the coordinator's orders say. For ``awake_s`` at
    most it waits without sleep for a handoff that was announced."""

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
        group: Group | None = None,
        awake_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._session = session
        self._role = role
        self._limits = limits
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
        self._room = room = Room(self._transfers, self._reports)
        self._sequences = room.sequences = DecodeScheduler(
            self._allocator, engine.layout, room.reclaim, room.leaving, drafts,
            prefixes.keep_answer,
        )  # fmt: skip
        self._prompts = room.prompts = PrefillScheduler(
            self._allocator, engine.layout, limits.prompts, room.num_beside_prompts,
            prefixes.reuse, prefixes.pulls,
        )  # fmt: skip
        self._compilations = Compilations(engine, room, self._reports, session, clock)
        self._group = group or Alone()
        self._launches = Launches(self._sequences.aborted, self._group.aborted, clock)
        self._steps = DecodeSteps(
            engine, self._sequences, self._launches, self._group, self._process_tokens, lookahead
        )
        self._batches = PromptBatches(
            engine, self._prompts, self._sequences, self._offers,
            partial(offer_of, instance, engine.cache, verified=handoff.verify),
            prefixes, self._reports, self._launches, clock,
        )  # fmt: skip
        self._orders = Orders(
            session, role, engine.layout, self._allocator, room, self._offers, self._pulling,
            self._compilations, prefixes, self._steps, self._group, self._reports, clock,
            awake_s=awake_s,
        )  # fmt: skip
        self._stalled = False

    # ---- one round

    def step(self) -> None:
        """Schedule, launch, process the previous result; returns at once without work."""
        self._prefixes.host.poll()
        self._compilations.resume_compiled()
        for sequence in self._pulling.arrived(num_growing=self._room.num_beside_transfers()):
            self._sequences.add(sequence)
        held = self._group.holds_prompts
        step = self._steps.launch(willing=held or not self._prompts.has_work)
        self._transfers.publish()
        for given_up in self._sequences.take_preempted():
            self._reports.failed(*given_up)
        if step == "undecided":
            return
        for sequence, problem in self._prompts.pulled():
            self._reports.failed(sequence, "pull_timeout", problem)
        num_running = len(self._sequences.running)
        num_waiting = sum(not prompt.compiling for prompt in self._prompts.sequences())
        most = self._limits.max_tokens(num_running=num_running, num_waiting=num_waiting)
        has_prompts = not held and self._batches.launch(most)
        if has_prompts:
            self._group.stand_apart()  # before this waits for the GPU
        idle = step == "idle" and not has_prompts
        self._stalled = idle and not self._launches
        self._launches.process(behind=0 if idle else self._lookahead)
        for sequence in self._offers.expire(self._clock()):
            self._reports.failed(sequence, "offer_expired", "no worker pulled the offer in time")
        if idle:
            willing = not self._prompts.has_work
            self._group.when_idle(self._allocator, willing=willing, empty=self.empty)

    def _process_tokens(self, scheduled: Scheduled, result: StepResult) -> None:
        first = first_steps(scheduled, self._clock())
        tokens, broken = self._sequences.process_results(scheduled, result)
        for sequence, error in broken:
            if not error:
                self._prompts.invalidate_prefixes(sequence)
            self._reports.sampling_failed(sequence, error)
        self._reports.tokens(scheduled, tokens, first)

    # ---- what the life around it says and asks (loop.py)

    def handle(self, message: Work) -> None:
        """An order of the coordinator."""
        self._group.interrupt()
        self._orders.handle(message)

    def drop_all(self) -> None:
        """The coordinator is gone: end every request without a word."""
        self._orders.drop_all()

    def give_back(self) -> None:
        """The drain's deadline: report every request as failed, to be retried elsewhere."""
        self._orders.give_back()

    def tell(self) -> None:
        """Tell the coordinator which prefixes are kept, where that has changed."""
        self._prefixes.publish_prefixes(self._session.send)

    def close(self) -> None:
        """Nothing writes the cache after this."""
        self._compilations.close()
        self._pulling.close()
        self._prefixes.close()

    def wait_s(self) -> float:
        """How long the loop may sleep for a message: 0 with work at hand."""
        if self._steps.undecided:
            return 0.0
        has_work = self._sequences.has_work or self._prompts.has_work
        copying = self._transfers.receiving or self._prefixes.pulls.under_way
        if not self._launches and copying and (self._stalled or not has_work):
            self._transfers.wait_for_copies(COPY_WAIT_S)
            self._prefixes.pulls.wait(COPY_WAIT_S)
            return 0.0
        if self._launches or has_work:
            return 0.0
        idle_s = SAVING_S if self._prefixes.host.copying else IDLE_S
        return min(idle_s, self._group.look_s)

    @property
    def awake_s(self) -> float:
        """How long the loop waits without sleep, if it has nothing to compute."""
        return self._orders.awake_s

    def held(self) -> tuple[tuple[str, int], ...]:
        """(request id, attempt) of every request not ended here."""
        return tuple(sequence.key for sequence in self._orders.held())

    @property
    def ready(self) -> bool:
        """Whether it can take part in serving: a decode worker, once it has a peer to pull from or
        prompts to compute itself."""
        return self._role != "decode" or self._transfers.has_peers or bool(self._room.active())

    @property
    def empty(self) -> bool:
        """Whether nothing is under way or waits."""
        copying = self._transfers.receiving or self._prefixes.pulls.under_way
        under_way = self._launches or self._steps.undecided or copying
        return not (self._room.active() or under_way or self._offers)

    def gauges(self) -> WorkerGauges:
        transfers, trials = self._transfers, self._group.trial_memory
        return WorkerGauges(
            free_pages=self._allocator.free_pages + trials.num_pages,
            free_state_slots=self._allocator.free_state_slots + trials.num_state_slots,
            shared_pages=self._allocator.num_pages_shared,
            running=len(self._prompts.filling) + len(self._sequences.running),
            waiting=len(self._prompts.waiting) + len(transfers.pending) + len(transfers.receiving),
            retiring_slots=len(self._prompts.retiring) + len(self._sequences.retiring),
            offered=len(self._offers),
            stale_dropped=self._orders.stale_dropped + self._pulling.stale_dropped,
            accounting_error=self._allocator.check() or self._prefixes.host.check(),
            drafts=self._sequences.draft_counts,
            prefix=self._prefixes.counts(),
            spread=self._group.counts(),
        )
