"""Schedules decode steps: all running sequences take each step, as long as there are pages.

Pure: no tensors, sockets or clocks. A step may be launched before the previous one's tokens
are known to the host (lookahead), so a sequence can turn out to have ended while a step for it
is under way: its tokens are dropped, and its cache is not reused until that step has retired.

A sequence takes a step if it gets pages for it (growth.py), which may preempt a younger sequence. A
sequence whose grammar is still being compiled takes no step, and keeps its memory.

A sequence that is to move takes no further step, except one without drafts if its state lacks
tokens that its pages have. That step must be a local one. Then it is settled.
"""

from bisect import insort
from collections.abc import Callable

from decode.growth import Growth, wants_step
from decode.speculation import DraftPolicy, NoDrafts
from engine.batch import Row, Sampled, StepResult
from engine.cache.allocator import CacheAllocator
from engine.sequence import Scheduled, Sequence
from transport.wire.layout import CacheLayout
from transport.wire.messages import TokenOut
from transport.wire.reports import DraftCounts


class DraftCounter:
    """Counts the steps of sequences, and their drafts by position, the first one's first."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._verified: list[int] = []
        self._accepted: list[int] = []

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """Count one sequence's step, in which the first ``num_accepted`` of ``num_drafts`` drafts
        were accepted."""
        self._num_steps += 1
        for counts in (self._verified, self._accepted):
            counts += [0] * (num_drafts - len(counts))
        for position in range(num_drafts):
            self._verified[position] += 1
            self._accepted[position] += position < num_accepted

    def counts(self, num_next: int) -> DraftCounts:
        """The counts so far. ``num_next``: drafts that a step makes for each sequence now."""
        return DraftCounts(self._num_steps, tuple(self._verified), tuple(self._accepted), num_next)


class DecodeScheduler:
    """The running sequences, oldest first, and the retiring ones.

    ``growth`` gives them pages; ``reclaim`` and ``leaving`` are what it asks the worker's prompts
    and transfers for. ``drafts`` chooses how many drafts the steps make. ``keep`` may take over the
    cache of a finished sequence for the prefix cache; it returns True if it does.
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
        self._allocator, self._page_size = allocator, layout.page_size
        self._drafts = drafts or NoDrafts()
        self._keep = keep
        self._counter = DraftCounter()
        self._num_made = 0
        self._num_sat_out = 0
        self.running: list[Sequence] = []
        self.retiring: set[Sequence] = set()

        def freed_soon() -> list[Sequence]:
            return [*leaving(), *self.retiring]

        self.growth = Growth(allocator, layout, self.running, self.end, reclaim, freed_soon)

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
        them the step may have; the others sit out, all in turn. Sequences that get no pages may be
        preempted (``growth``)."""
        rows: list[Row] = []
        sequences: list[Sequence] = []
        self.growth.begin_step()
        for sequence in self._taking_turns(most):
            if sequence.ended or not self.growth.grow(sequence):
                continue
            row = self._row(sequence, self.growth.grow_for_drafts(sequence, self._num_made))
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
        """Count a launched step as done; returns the tokens of sequences that are still running."""
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
        hold all tokens that were pending before it. One that had ended, with all its pages full,
        has the step's token in place of its last one: that is not worth keeping."""
        for sequence, row in zip(scheduled.sequences, scheduled.rows, strict=True):
            sequence.num_pending = 0
            if sequence.num_cached > len(row.block_table) * self._page_size:
                sequence.finished = False
        self.take_back(scheduled)

    def process_results(
        self, scheduled: Scheduled, result: StepResult
    ) -> tuple[list[TokenOut], list[tuple[Sequence, str]]]:
        """Retire a step and append its tokens to the sequences. Returns the tokens to send, and the
        sequences whose sampling failed, each with its error. Finished sequences have ended."""
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

    def end(self, sequence: Sequence) -> None:
        """End a sequence; its cache is free once its launched steps have retired."""
        sequence.ended = True
        self.running.remove(sequence)
        self.retiring.add(sequence)
        self._release_if_retired(sequence)

    @property
    def settling(self) -> bool:
        """True if a sequence that is to move needs a local step, or has one under way."""
        return any(sequence.moving and sequence.num_pending for sequence in self.running)

    def take_settled(self) -> list[Sequence]:
        """Remove and return the sequences that are to move and have no step under way: their states
        have all tokens but the last. The caller takes over their memory."""
        settled = [
            sequence
            for sequence in self.running
            if sequence.moving and not sequence.in_flight and not sequence.num_pending
        ]
        for sequence in settled:
            self.running.remove(sequence)
        return settled

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
        if sequence.moving and (sequence.in_flight or not sequence.num_pending):
            return False
        return not sequence.compiling and wants_step(sequence)

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
