"""Schedules prompts: first come, first served, in chunks, several in a batch.

Pure: no tensors, sockets or clocks. The next waiting prompt is admitted when there is room
for all of it (admission.py). Its chunks end at multiples of 64, except the last. The pool that
finished prompts occupy until they are pulled is the back-pressure: while it is full, no prompt is
admitted.
"""

import logging
from collections.abc import Callable
from itertools import chain, islice

from engine.batch import Keep, Row, Sampled, StepResult
from engine.cache.allocator import CacheAllocator
from engine.sequence import Scheduled, Sequence
from prefill.admission import Admission, WaitingPrompts
from prefill.limits import PrefillLimits
from prefill.pulls import PrefixPulls
from prefill.reuse import PrefixReuse
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout
from transport.wire.offers import PrefixName

log = logging.getLogger(__name__)


class PrefillScheduler:
    """Waiting prompts, prompts being filled, and retiring prompts: ended, with a launched batch
    still under way.

    ``headroom`` is how many pages must stay free beside a prompt that is admitted. ``reuse`` and
    ``pulls`` are the prefix cache's, None without.
    """

    def __init__(
        self,
        allocator: CacheAllocator,
        layout: CacheLayout,
        limits: PrefillLimits,
        headroom: Callable[[], int] = lambda: 0,
        reuse: PrefixReuse | None = None,
        pulls: PrefixPulls | None = None,
    ) -> None:
        self._limits = limits
        self._reuse = reuse
        self._pulls = pulls
        self._admission = Admission(allocator, layout, headroom, reuse, pulls)
        self.filling: list[Sequence] = []
        self.waiting = WaitingPrompts(self.filling, reuse)
        self.retiring: set[Sequence] = set()

    @property
    def has_work(self) -> bool:
        """True if ``schedule`` could return a batch now."""
        if any(_unfinished(sequence) for sequence in self.filling):
            return True
        following = self.waiting.next()
        return following is not None and self._admission.has_room(following)

    def leaving(self) -> list[Sequence]:
        """The retiring prompts, except those that a copy still writes: it may never end."""
        return [sequence for sequence in self.retiring if sequence.pulling is None]

    def sequences(self) -> list[Sequence]:
        return [*self.waiting, *self.filling]

    def oldest(self, most: int) -> list[Sequence]:
        """The first ``most`` prompts in the order in which they are computed."""
        return list(islice(chain(self.filling, self.waiting), most))

    def num_left(self, prompt: Sequence) -> int:
        """The tokens of the prompt that are neither cached nor in a launched batch. A prompt that
        waits will reuse the prefix that is kept on the device now."""
        if prompt.allocation is not None or self._reuse is None:
            return prompt.num_tokens - prompt.num_cached
        return prompt.num_tokens - self._reuse.num_kept(prompt)

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    def compiled(self) -> None:
        """Note that waiting prompts may have stopped ``compiling``."""
        self.waiting.changed()

    def schedule(self, max_tokens: int | None = None) -> Scheduled | None:
        """The next batch, within the limits and ``max_tokens``; None if there is nothing to
        compute."""
        budget = min(max_tokens or self._limits.max_batch_tokens, self._limits.max_batch_tokens)
        rows: list[Row] = []
        sequences: list[Sequence] = []
        for sequence in self._candidates():
            length = self._chunk_length(sequence, budget)
            if length == 0 or len(rows) == self._limits.max_batch_rows:
                break
            keep = None
            if self._reuse is not None:
                length, keep = self._reuse.chunk(sequence, length)
            rows.append(self._row(sequence, length, keep))
            sequences.append(sequence)
            budget -= length
            sequence.in_flight += 1
            sequence.num_cached += length
        return Scheduled(tuple(rows), tuple(sequences)) if rows else None

    def retire(self, scheduled: Scheduled, result: StepResult) -> list[tuple[Sequence, Sampled]]:
        """Process a batch's result; returns the prompts that it finished, with their caches."""
        finished = []
        self.waiting.changed()
        for sequence, row, sampled in scheduled.outcomes(result):
            sequence.in_flight -= 1
            if self._reuse is not None:
                self._reuse.retired(sequence, row.keep)
            if sequence.ended:
                self._release_if_retired(sequence)
            elif row.sample:
                assert len(sampled) == 1, "the last chunk of a prompt samples one token"
                self.filling.remove(sequence)
                finished.append((sequence, sampled[0]))
        return finished

    def pulled(self) -> list[tuple[Sequence, str]]:
        """Start the prompts whose prefix has been copied. Ends and returns the prompts whose copy
        took too long, each with the problem."""
        if self._pulls is None:
            return []
        for sequence, beginning in self._pulls.done():
            self.waiting.changed()
            sequence.in_flight -= 1
            if sequence.ended:
                self._release_if_retired(sequence)
            elif beginning is not None:
                self._admission.begin(sequence, beginning)
            else:  # the prefix was evicted meanwhile: compute the prompt without it
                self.filling.remove(sequence)
                self._release_if_retired(sequence)
                self.add(sequence)
        late = self._pulls.overdue()
        for sequence in late:
            self.end(sequence)
        return [(sequence, "the copy of its prefix did not finish in time") for sequence in late]

    def invalidate_prefixes(self, sequence: Sequence) -> None:
        """Invalidate the prefixes that a sequence has kept or began with: they may be wrong."""
        if self._reuse is not None:
            for name in self._reuse.invalidate(sequence):
                self._stop_using(name)

    def drop(self, name: PrefixName) -> None:
        """Handle DropPrefix: a peer that pulled this prefix found that it may be wrong. Stop using
        and making it and the prefixes that continue it."""
        self._stop_using(name)
        num_dropped = self._reuse.drop(name) if self._reuse is not None else 0
        log.warning("dropped %d prefixes: a peer that pulled one computed NaN from it", num_dropped)

    def _stop_using(self, name: PrefixName) -> None:
        """Stop running prompts and copies from using a prefix that may be wrong."""
        self.waiting.changed()
        if self._pulls is not None:
            self._pulls.drop(name)
        for sequence in self.filling:
            if sequence.begins_with(name, sequence.beginning.num_tokens):
                sequence.places.clear()

    def end(self, sequence: Sequence) -> None:
        """Stop computing a sequence; its cache is free once its launched steps have retired."""
        sequence.ended = True
        self.waiting.changed()
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.filling:
            self.filling.remove(sequence)
        self._release_if_retired(sequence)

    def _candidates(self) -> list[Sequence]:
        """Prompts with something left to launch, oldest first, new ones admitted as they fit."""
        unfinished = [sequence for sequence in self.filling if _unfinished(sequence)]
        youngest = max((each.arrival for each in unfinished), default=0)
        # The next prompt is compared with prompts being filled even if a batch has no room for it.
        while (sequence := self.waiting.next()) is not None:
            is_full = len(unfinished) >= self._limits.max_batch_rows
            if is_full and sequence.arrival >= youngest:
                break
            if not self._admission.has_room(sequence):
                break
            self._admission.admit(sequence)
            self.waiting.remove(sequence)
            self.filling.append(sequence)
            if sequence.pulling is None:
                unfinished.append(sequence)
        return sorted(unfinished, key=lambda each: each.arrival)

    def _chunk_length(self, sequence: Sequence, budget: int) -> int:
        rest = len(sequence.token_ids) - sequence.num_cached
        return rest if rest <= budget else budget // CHUNK_ALIGNMENT * CHUNK_ALIGNMENT

    def _row(self, sequence: Sequence, length: int, keep: Keep | None) -> Row:
        assert sequence.allocation is not None, "scheduled without pages"
        start, end = sequence.num_cached, sequence.num_cached + length
        return Row(
            state_slot=sequence.allocation.slot.id,
            block_table=sequence.allocation.pages,
            start=start,
            token_ids=tuple(sequence.token_ids[start:end]),
            sample=end == len(sequence.token_ids),
            scoring=sequence.scoring(start, end),
            next_id=sequence.token_ids[end] if end < len(sequence.token_ids) else None,
            keep=keep,
        )

    def _release_if_retired(self, sequence: Sequence) -> None:
        if sequence.allocation is None:
            return
        if sequence.in_flight:
            self.retiring.add(sequence)
            return
        self.retiring.discard(sequence)
        self._admission.release(sequence)


def _unfinished(sequence: Sequence) -> bool:
    """True if a sequence has tokens that can be launched."""
    return sequence.pulling is None and sequence.num_cached < len(sequence.token_ids)
