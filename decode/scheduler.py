"""Schedules decode steps: all running sequences take each step, as long as there are pages.

Pure: no tensors, sockets or clocks. A step may be launched before the previous one's tokens
are known to the host (lookahead), so a sequence can turn out to have ended while a step for it
is under way: its tokens are dropped, and its cache is not reused until that step has retired.

When a page is missing, the youngest prompt or transfer is preempted, or else the youngest running
sequence. It is computed again elsewhere or later, so the oldest running sequence always advances.
Pages that a launched step or a copy uses become free when it is done; a sequence that needs one
skips steps until then. No sequence is preempted for pages that are about to be freed. A sequence
whose grammar is still being compiled takes no step, and keeps its memory.
"""

from bisect import insort
from collections.abc import Callable

from decode.draft_counts import DraftCounter
from decode.speculation import DraftPolicy, NoDrafts
from engine.batch import Row, Sampled, StepResult
from engine.cache.allocator import CacheAllocator, too_long
from engine.sequence import Scheduled, Sequence
from transport.wire.layout import CacheLayout
from transport.wire.messages import FailureCode, TokenOut
from transport.wire.reports import DraftCounts


class DecodeScheduler:
    """The running sequences, oldest first, and the retiring ones.

    Prompts and transfers on this worker hold memory too. Before a running sequence is preempted,
    ``reclaim(arrival)`` ends a prompt or transfer younger than ``arrival``, or returns False.
    ``leaving`` lists prompts and transfers that have ended, and whose pages are freed soon.
    ``drafts`` chooses how many drafts the steps make. ``keep`` may take over the cache of a
    finished sequence for the prefix cache; it returns True if it does.
    """

    def __init__(
        self,
        allocator: CacheAllocator,
        layout: CacheLayout,
        reclaim: Callable[[int], bool] = lambda arrival: False,
        leaving: Callable[[], list[Sequence]] = list,
        drafts: DraftPolicy | None = None,
        keep: Callable[[Sequence], bool] = lambda sequence: False,
    ) -> None:
        self._allocator = allocator
        self._layout = layout
        self._reclaim = reclaim
        self._leaving = leaving
        self._drafts = drafts or NoDrafts()
        self._keep = keep
        self._counter = DraftCounter()
        self._num_made = 0
        self._num_awaited = self._num_returning = 0
        self._num_sat_out = 0
        self.running: list[Sequence] = []
        self.retiring: set[Sequence] = set()
        self.preempted: list[Sequence] = []
        self.outgrown: list[tuple[Sequence, str]] = []

    def add(self, sequence: Sequence) -> None:
        """Start decoding a landed sequence: all its tokens but the last are in the cache."""
        assert sequence.allocation is not None, "running without pages"
        assert sequence.num_cached == sequence.num_tokens - 1, "cache and tokens differ"
        insort(self.running, sequence, key=lambda running: running.arrival)

    @property
    def draft_counts(self) -> DraftCounts:
        """Counts of all verified and accepted drafts so far."""
        return self._counter.counts(self._num_made)

    @property
    def has_work(self) -> bool:
        return any(self._may_step(sequence) for sequence in self.running)

    def schedule(self, most: Callable[[int], int] = lambda ready: ready) -> Scheduled | None:
        """The next step. ``most`` is given the number of ready sequences, and returns how many of
        them the step may have; the others sit out, all in turn. Preempted sequences are added to
        ``preempted``; sequences that the whole pool cannot hold any longer are added to
        ``outgrown``, with the problem."""
        rows: list[Row] = []
        sequences: list[Sequence] = []
        self._num_awaited = self._num_returning = 0
        for sequence in self._taking_turns(most):
            if sequence.ended or not self._grow(sequence):
                continue
            row = self._row(sequence, self._grow_for_drafts(sequence))
            rows.append(row)
            sequences.append(sequence)
            sequence.in_flight += 1
            sequence.num_cached += 1
            sequence.drafts_in_flight += row.num_drafts
        if not rows:
            return None
        self._num_made = self._drafts.num_next(len(rows))
        return Scheduled(tuple(rows), tuple(sequences), self._num_made)

    def retire(
        self, scheduled: Scheduled, result: StepResult
    ) -> list[tuple[Sequence, tuple[Sampled, ...]]]:
        """Process a step's result; returns the tokens of sequences that are still running."""
        alive = []
        for num_drafts, sampled in zip(result.drafts, result.sampled, strict=True):
            if sampled:
                self._counter.note(num_drafts, len(sampled) - 1)
                self._drafts.verified(num_drafts, len(sampled) - 1)
        for sequence, row, sampled in scheduled.outcomes(result):
            sequence.in_flight -= 1
            sequence.drafts_in_flight -= row.num_drafts
            sequence.num_pending = max(0, len(sampled) - result.num_stored)
            sequence.num_cached += max(0, len(sampled) - 1)
            if sequence.ended:
                if any(each.token_id is None for each in sampled):
                    sequence.finished = False  # its state is not worth keeping
                self._release_if_retired(sequence)
            else:
                assert sampled, "a decode row did not sample"
                alive.append((sequence, sampled))
        return alive

    def take_back(self, scheduled: Scheduled) -> None:
        """Undo the scheduling of a step that was not computed: its sequences take it again, and
        keep the pages that they were given for it."""
        for sequence, row in zip(scheduled.sequences, scheduled.rows, strict=True):
            sequence.in_flight -= 1
            sequence.num_cached -= 1
            sequence.drafts_in_flight -= row.num_drafts
            if sequence.ended:
                self._release_if_retired(sequence)

    def aborted(self, scheduled: Scheduled) -> None:
        """Undo a step that was launched and then aborted. Its sequences take it again; their states
        hold all tokens that were pending before it."""
        for sequence in scheduled.sequences:
            sequence.num_pending = 0
        self.take_back(scheduled)

    def process_results(
        self, scheduled: Scheduled, result: StepResult
    ) -> tuple[list[TokenOut], list[tuple[Sequence, str]]]:
        """Process a step's result and append its tokens to the sequences. Returns the tokens to
        send, and the sequences whose sampling failed, each with its error. Finished sequences have
        ended."""
        tokens: list[TokenOut] = []
        broken: list[tuple[Sequence, str]] = []
        drafts = dict(zip(scheduled.sequences, result.drafts, strict=True))
        for sequence, every in self.retire(scheduled, result):
            for place, sampled in enumerate(every):
                if sampled.token_id is None:
                    self.end(sequence)
                    broken.append((sequence, sampled.error))
                    break
                step = (0, 0) if place else (drafts[sequence], len(every) - 1)
                token = sequence.append(sampled, step)
                tokens.append(token)
                if token.finish is not None:
                    sequence.finished = True
                    self.end(sequence)
                    break
        return tokens, broken

    def take_preempted(self) -> list[tuple[Sequence, FailureCode, str, bool]]:
        """The sequences that ``schedule`` has ended: sequence, code, message, and whether to retry
        it."""
        given_up: list[tuple[Sequence, FailureCode, str, bool]] = []
        given_up += [(sequence, "preempted", "out of pages", True) for sequence in self.preempted]
        given_up += [(sequence, "too_long", why, False) for sequence, why in self.outgrown]
        self.preempted.clear()
        self.outgrown.clear()
        return given_up

    def end(self, sequence: Sequence) -> None:
        """End a sequence; its cache is free once its launched steps have retired."""
        sequence.ended = True
        self.running.remove(sequence)
        self.retiring.add(sequence)
        self._release_if_retired(sequence)

    def _taking_turns(self, most: Callable[[int], int]) -> list[Sequence]:
        """The sequences that take the next step: all that are ready, except those that sit out."""
        ready = [sequence for sequence in self.running if self._may_step(sequence)]
        surplus = len(ready) - most(len(ready))
        if surplus <= 0:
            return ready
        first = self._num_sat_out % len(ready)
        self._num_sat_out += surplus
        out = {(first + i) % len(ready) for i in range(surplus)}
        return [sequence for i, sequence in enumerate(ready) if i not in out]

    def _may_step(self, sequence: Sequence) -> bool:
        return not sequence.compiling and self._wants_step(sequence)

    def _wants_step(self, sequence: Sequence) -> bool:
        return sequence.num_output + sequence.in_flight < sequence.stop.max_tokens

    def _grow(self, sequence: Sequence) -> bool:
        """Give a sequence pages for one more token, preempting younger sequences if needed. False
        if it skips this step, was preempted itself, or has outgrown the pool."""
        assert sequence.allocation is not None, "running without pages"
        num_pages = self._layout.pages_for(self._most_cached(sequence) + 1)
        while num_pages > len(sequence.allocation.pages) + self._allocator.free_pages:
            if num_pages > self._allocator.size.num_pages:
                self._outgrow(sequence)
                return False
            missing = num_pages - len(sequence.allocation.pages) - self._allocator.free_pages
            awaited = self._num_awaited + missing
            if awaited > self._num_returning:  # it only grows while a step is scheduled
                self._num_returning = self._count_returning()
            if awaited <= self._num_returning:
                self._num_awaited = awaited
                return False
            if not self._reclaim(sequence.arrival) and self._preempt_youngest() is sequence:
                return False
        self._allocator.grow(sequence.allocation, num_pages)
        return True

    def _grow_for_drafts(self, sequence: Sequence) -> int:
        """Number of drafts that the step may verify for a sequence that has pages for its token. No
        other sequence is preempted for drafts."""
        assert sequence.allocation is not None, "running without pages"
        if not self._num_made:
            return 0
        left = sequence.stop.max_tokens - sequence.num_output - sequence.in_flight - 1
        certain = self._most_cached(sequence) + 1
        num = min(self._num_made, left)
        # With a step under way, drafts may lie beyond the last token that the sequence may have.
        last = sequence.num_prompt + sequence.stop.max_tokens
        pages = self._layout.pages_for(min(certain + max(0, num), last))
        missing = pages - len(sequence.allocation.pages)
        if 0 < missing <= self._allocator.free_pages:
            self._allocator.grow(sequence.allocation, pages)
        room = len(sequence.allocation.pages) * self._layout.page_size
        return max(0, min(num, room - certain))

    def _most_cached(self, sequence: Sequence) -> int:
        """Tokens that may be in the cache once all launched steps have retired."""
        limit = sequence.num_prompt + sequence.stop.max_tokens - 1
        return min(sequence.num_cached + sequence.drafts_in_flight, limit)

    def _count_returning(self) -> int:
        """Number of pages that are certainly free once the launched steps have retired; pages that
        other sequences share are not counted."""
        last_steps = [s for s in self.running if not self._wants_step(s)]
        ending = [*self._leaving(), *self.retiring, *last_steps]
        return self._allocator.num_pages_freed_by(h for s in ending for h in s.page_holds)

    def _preempt_youngest(self) -> Sequence:
        """Preempt the youngest sequence whose last step is not under way already."""
        sequence = next(s for s in reversed(self.running) if self._wants_step(s))
        self.end(sequence)
        self.preempted.append(sequence)
        return sequence

    def _outgrow(self, sequence: Sequence) -> None:
        """End a sequence that the pool cannot hold, unless a step under way may finish it."""
        if sequence.in_flight == 0:
            problem = too_long(sequence.num_cached + 1, self._layout, self._allocator.size)
            self.end(sequence)
            self.outgrown.append((sequence, problem))

    def _row(self, sequence: Sequence, num_drafts: int) -> Row:
        assert sequence.allocation is not None, "running without pages"
        return Row(
            state_slot=sequence.allocation.slot.id,
            block_table=sequence.allocation.pages,
            start=sequence.num_cached,
            token_ids=None,
            num_drafts=num_drafts,
        )

    def _release_if_retired(self, sequence: Sequence) -> None:
        if sequence.in_flight == 0:
            assert sequence.allocation is not None, "retiring without pages"
            self.retiring.remove(sequence)
            if not (sequence.finished and self._keep(sequence)):
                self._allocator.release(sequence.allocation)
            sequence.allocation = None
