"""Pages for running sequences that grow, and preemption when there are none. Pure.

When a page is missing, the youngest prompt or transfer is preempted, or else the youngest running
sequence. It is computed again elsewhere or later, so the oldest running sequence always advances.
Pages that a launched step or a copy uses become free when it is done; a sequence that needs one
skips steps until then. No sequence is preempted for pages that are about to be freed.
"""

from collections.abc import Callable

from engine.cache.allocator import CacheAllocator, too_long
from engine.sequence import Sequence
from transport.wire.layout import CacheLayout
from transport.wire.messages import FailureCode


def wants_step(sequence: Sequence) -> bool:
    """True if a sequence may have more tokens than its launched steps bring."""
    return sequence.num_output + sequence.in_flight < sequence.stop.max_tokens


class Growth:
    """Gives the ``running`` sequences, oldest first, the pages of their next step, and ``end``s
    those that get none.

    Prompts and transfers on this worker hold memory too. Before a running sequence is preempted,
    ``reclaim(arrival)`` ends a prompt or transfer younger than ``arrival``, or returns False.
    ``leaving`` lists sequences that have ended, and whose pages are freed soon. Preempted sequences
    are added to ``preempted``; sequences that the whole pool cannot hold any longer are added to
    ``outgrown``, with the problem.
    """

    def __init__(
        self,
        allocator: CacheAllocator,
        layout: CacheLayout,
        running: list[Sequence],
        end: Callable[[Sequence], None],
        reclaim: Callable[[int], bool],
        leaving: Callable[[], list[Sequence]],
    ) -> None:
        self._allocator = allocator
        self._layout = layout
        self._running = running
        self._end = end
        self._reclaim = reclaim
        self._leaving = leaving
        self._num_awaited = self._num_returning = 0
        self.preempted: list[Sequence] = []
        self.outgrown: list[tuple[Sequence, str]] = []

    def begin_step(self) -> None:
        """Reset the counts of pages that are awaited, and of those that are about to be free."""
        self._num_awaited = self._num_returning = 0

    def grow(self, sequence: Sequence) -> bool:
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

    def grow_for_drafts(self, sequence: Sequence, num_made: int) -> int:
        """Number of drafts that the step may verify for a sequence that has pages for its token. No
        other sequence is preempted for drafts."""
        assert sequence.allocation is not None, "running without pages"
        if not num_made or sequence.moving:
            return 0
        left = sequence.stop.max_tokens - sequence.num_output - sequence.in_flight - 1
        certain = self._most_cached(sequence) + 1
        num = min(num_made, left)
        # With a step under way, drafts may lie beyond the last token that the sequence may have.
        last = sequence.num_prompt + sequence.stop.max_tokens
        pages = self._layout.pages_for(min(certain + max(0, num), last))
        missing = pages - len(sequence.allocation.pages)
        if 0 < missing <= self._allocator.free_pages:
            self._allocator.grow(sequence.allocation, pages)
        room = len(sequence.allocation.pages) * self._layout.page_size
        return max(0, min(num, room - certain))

    def take_preempted(self) -> list[tuple[Sequence, FailureCode, str, bool]]:
        """Sequences that have ended for lack of pages since the last call: sequence, code, message,
        and whether to retry it."""
        given_up: list[tuple[Sequence, FailureCode, str, bool]] = []
        given_up += [(sequence, "preempted", "out of pages", True) for sequence in self.preempted]
        given_up += [(sequence, "too_long", why, False) for sequence, why in self.outgrown]
        self.preempted.clear()
        self.outgrown.clear()
        return given_up

    def _most_cached(self, sequence: Sequence) -> int:
        """Tokens that may be in the cache once all launched steps have retired."""
        limit = sequence.num_prompt + sequence.stop.max_tokens - 1
        return min(sequence.num_cached + sequence.drafts_in_flight, limit)

    def _count_returning(self) -> int:
        """Number of pages that are certainly free once the launched steps have retired; pages that
        other sequences share are not counted."""
        last_steps = [s for s in self._running if not wants_step(s)]
        ending = [*self._leaving(), *last_steps]
        return self._allocator.num_pages_freed_by(h for s in ending for h in s.page_holds)

    def _preempt_youngest(self) -> Sequence:
        """Preempt the youngest sequence whose last step is not under way already."""
        sequence = next(s for s in reversed(self._running) if wants_step(s))
        self._end(sequence)
        self.preempted.append(sequence)
        return sequence

    def _outgrow(self, sequence: Sequence) -> None:
        """End a sequence that the pool cannot hold, unless a step under way may finish it."""
        if sequence.in_flight == 0:
            problem = too_long(sequence.num_cached + 1, self._layout, self._allocator.size)
            self._end(sequence)
            self.outgrown.append((sequence, problem))
