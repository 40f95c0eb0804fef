"""The state of one worker: its requests in every stage, and the memory that they share.

A prompt or a transfer is admitted only while a page is left for every sequence that will grow. If
pages run out nevertheless, the youngest prompt or transfer is preempted, to be retried elsewhere.
"""

import time
from collections.abc import Callable

from decode.scheduler import DecodeScheduler
from decode.speculation import DraftPolicy
from decode.transfers import KVTransfer, KVTransferQueue
from engine.cache.publish import allocator_for
from engine.runner import Engine
from engine.sequence import Scheduled, Sequence, attempts_up_to, youngest_since
from prefill.offers import Offers
from prefill.scheduler import PrefillScheduler
from transport.copy.host_copy import HostCopier, NoHostMemory
from transport.copy.pull import CopyStream
from transport.copy.queue import CopyQueue
from transport.wire.messages import FromWorker
from transport.wire.reports import PromptCounts, WorkerGauges
from transport.wire.spread import SpreadCounts
from worker.prefixes import Prefixes
from worker.reports import Reports
from worker.settings import ServingSettings
from worker.shares import Shares
from worker.spread.trial_rows import TrialMemory


class Room:
    """The requests and memory of one worker: ``prompts`` that wait or are being filled, ``offers``
    that wait for a decode worker, ``transfers`` from prefill workers, ``sequences`` that are being
    decoded, and ``prefixes`` that are kept for later prompts.

    The worker computes with ``engine``, pulls from peers with ``puller``, and sends its ``reports``
    by ``send``. ``host`` keeps prefixes that the device evicts. ``shares``: how the GPU is divided.
    """

    def __init__(
        self,
        engine: Engine,
        send: Callable[[FromWorker], None],
        settings: ServingSettings,
        puller: CopyStream,
        *,
        host: HostCopier | None = None,
        drafts: DraftPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine, self.puller = engine, puller
        self.settings, self.clock = settings, clock
        self.reports = Reports(send)
        self.shares = Shares(engine.overlap)
        self.allocator = allocator = allocator_for(engine)
        self.offers = Offers(allocator, settings.handoff.offer_ttl_s)
        pulled = CopyQueue[KVTransfer](engine.cache, settings.handoff.pull_timeout_s, clock)
        self.transfers = KVTransferQueue(allocator, engine.layout, puller, pulled, clock)
        self.prefixes = prefixes = Prefixes(
            engine, allocator, settings, puller, self.transfers.peers, host or NoHostMemory(), clock
        )
        self.sequences = DecodeScheduler(
            allocator, engine.layout, self.reclaim, self.leaving, drafts, prefixes.keep_answer
        )
        self.prompts = PrefillScheduler(
            allocator, engine.layout, settings.limits.prompts, self.num_beside_prompts,
            prefixes.reuse, prefixes.pulls,
        )  # fmt: skip

    # ---- its requests

    def active(self) -> list[Sequence]:
        """Every sequence that has not ended here, except offered ones."""
        transferred, running = self.transfers.sequences(), self.sequences.running
        return [*self.prompts.sequences(), *transferred, *running]

    def held(self) -> list[Sequence]:
        """Every sequence that has not ended here, including offered ones."""
        return [*self.active(), *self.offers.sequences()]

    def end(self, sequence: Sequence) -> None:
        """End a sequence; its memory is free once nothing under way uses it."""
        if sequence in self.sequences.running:
            self.sequences.end(sequence)
        elif sequence in self.transfers.sequences():
            self.transfers.end(sequence)
        else:
            self.prompts.end(sequence)

    def cancel(self, request_id: str, attempt: int) -> bool:
        """End every attempt of the request up to ``attempt``; returns False if there was none."""
        found = attempts_up_to(self.active(), request_id, attempt)
        for sequence in found:
            self.end(sequence)
            self.reports.dropped(sequence)
        return self.offers.withdraw(request_id, attempt) or bool(found)

    def move(self, request_id: str, attempt: int) -> bool:
        """Let a sequence that is being decoded settle, to be offered to another worker; returns
        False if there is none."""
        for sequence in self.sequences.running:
            if sequence.key == (request_id, attempt):
                sequence.moving = True
                return True
        return False

    def end_all(self) -> None:
        """End every sequence without a report, including offered ones."""
        for sequence in self.active():
            self.end(sequence)
        self.offers.withdraw_all()

    def bind_new(self, scheduled: Scheduled) -> None:
        """Bind the sequences whose first batch here this is to their state slots, and copy the
        prefix that they begin with. Called before the batch is launched, and for a step of a spread
        group before the members agree on it."""
        for sequence in scheduled.sequences:
            if not sequence.bound:
                sequence.bound, sequence.started_at = True, self.clock()
                self.engine.bind(sequence.binding())
                self.prefixes.copy_beginning(sequence)

    def publish_scheduled(self) -> None:
        """Publish what the next step changed, after it was launched: the epochs of the state slots
        that transfers were given, and the sequences that were preempted."""
        self.transfers.publish()
        for given_up in self.sequences.growth.take_preempted():
            self.reports.failed(*given_up)

    def expire_offers(self) -> None:
        """Fail the offers that no decode worker pulled in time."""
        for sequence in self.offers.expire(self.clock()):
            self.reports.failed(sequence, "offer_expired", "no worker pulled the offer in time")

    # ---- their memory

    def num_beside_transfers(self) -> int:
        """Pages to keep free beside a transfer that is admitted."""
        return len(self.sequences.running) + len(self.prompts.filling)

    def num_beside_prompts(self) -> int:
        """Pages to keep free beside a prompt that is admitted."""
        return len(self.sequences.running) + len(self.transfers.copies)

    def leaving(self) -> list[Sequence]:
        """Prompts and transfers that have ended; their pages are freed when their last batch or
        copy is done."""
        return [*self.prompts.leaving(), *self.transfers.leaving()]

    def reclaim(self, arrival: int) -> bool:
        """Preempt the youngest prompt or transfer, if it is younger than ``arrival``; returns True
        if there was one."""
        held = [*self.prompts.filling, *self.transfers.holding_pages()]
        youngest = youngest_since(held, arrival)
        if youngest is None:
            return False
        self.end(youngest)
        self.reports.failed(youngest, "preempted", "out of pages")
        return True

    @property
    def copying(self) -> bool:
        """True while caches or prefixes are copied to here."""
        return bool(self.transfers.copies or self.prefixes.pulls.copies)

    def wait_for_copies(self, timeout_s: float) -> None:
        """Wait for the copies of caches, then for those of prefixes, at most ``timeout_s`` each."""
        self.transfers.copies.wait(timeout_s)
        self.prefixes.pulls.copies.wait(timeout_s)

    def gauges(
        self,
        stale_dropped: int,
        batches: PromptCounts,
        steps_share: int,
        spread: SpreadCounts,
        trials: TrialMemory,
    ) -> WorkerGauges:
        """The numbers of a heartbeat, with the worker's ``stale_dropped`` orders, ``batches`` of
        prompts, ``steps_share`` beside some, and ``spread`` steps. What ``trials`` hold is free for
        any request."""
        transfers, prompts, sequences = self.transfers, self.prompts, self.sequences
        num_copies = len(transfers.copies)
        return WorkerGauges(
            free_pages=self.allocator.free_pages + trials.num_pages,
            free_state_slots=self.allocator.free_state_slots + trials.num_state_slots,
            shared_pages=self.allocator.num_pages_shared,
            running=len(prompts.filling) + len(sequences.running),
            waiting=len(prompts.waiting) + len(transfers.pending) + num_copies,
            retiring_slots=len(prompts.retiring) + len(sequences.retiring),
            offered=len(self.offers),
            stale_dropped=stale_dropped + transfers.copies.num_stale,
            accounting_error=self.allocator.check() or self.prefixes.host.check(),
            steps_share=steps_share,
            prompts=batches,
            drafts=sequences.draft_counts,
            prefix=self.prefixes.counts(),
            spread=spread,
        )
