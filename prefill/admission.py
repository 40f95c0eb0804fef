"""Admits prompts: which waiting prompt is next, its memory, and the prefix that it reuses. Pure.

A waiting prompt is skipped while its grammar compiles, or while a running prompt is computing a
prefix that it can reuse (reuse.py). It is admitted when a state slot and all pages that it does not
share are free, so it can always be finished. It starts behind its longest kept prefix, which is
here (reuse.py), in host memory or at a peer (pulls.py).
"""

from bisect import insort
from collections.abc import Callable, Iterator

from engine.cache.allocator import CacheAllocator
from engine.cache.kept import KeptPrefix
from engine.sequence import WHOLE, Beginning, Sequence
from prefill.pulls import PrefixPulls
from prefill.reuse import PrefixReuse
from transport.wire.layout import CacheLayout


class WaitingPrompts:
    """The prompts of one worker that wait for memory, in the order of acceptance.

    ``filling`` are the prompts that have memory. A caller that changes that list, or lets one of
    those prompts advance, calls ``changed``.
    """

    def __init__(self, filling: list[Sequence], reuse: PrefixReuse | None) -> None:
        self._filling = filling
        self._reuse = reuse
        self._prompts: list[Sequence] = []
        self._next: Sequence | None = None
        self._has_compared = False

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._prompts)

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, sequence: Sequence) -> None:
        insort(self._prompts, sequence, key=lambda waiting: waiting.arrival)
        self.changed()

    def remove(self, sequence: Sequence) -> None:
        self._prompts.remove(sequence)
        self.changed()

    def changed(self) -> None:
        """Note that prompts being filled began, advanced or ended, or that a grammar compiled."""
        self._has_compared = False

    def next(self) -> Sequence | None:
        """The oldest prompt that waits for nothing but memory. Called several times per round, so
        prompts are compared only after a change."""
        if not self._has_compared:
            self._next, self._has_compared = self._compared(), True
        return self._next

    def _compared(self) -> Sequence | None:
        reuse, filling = self._reuse, self._filling
        compiled = (s for s in self._prompts if not s.compiling)
        if reuse is None or not filling:
            return next(compiled, None)
        return next((s for s in compiled if not reuse.waits(s, filling)), None)


class Admission:
    """Admission of prompts. ``headroom``: how many pages must stay free beside an admitted prompt.
    ``reuse`` and ``pulls`` are the prefix cache's; None without a prefix cache."""

    def __init__(
        self,
        allocator: CacheAllocator,
        layout: CacheLayout,
        headroom: Callable[[], int],
        reuse: PrefixReuse | None,
        pulls: PrefixPulls | None,
    ) -> None:
        self._allocator = allocator
        self._layout = layout
        self._headroom = headroom
        self._reuse = reuse
        self._pulls = pulls

    def has_room(self, sequence: Sequence) -> bool:
        num_pages = self._num_pages(sequence) + self._headroom()
        if self._allocator.can_reserve(num_pages):
            return True
        return self._shareable(sequence, num_pages) is not None

    def admit(self, sequence: Sequence) -> None:
        """Reserve pages and a state slot for a prompt, and give it its prefix; a prefix that must
        be copied comes later (``Sequence.pulling``)."""
        num_pages = self._num_pages(sequence)
        prefix = self._shareable(sequence, num_pages)
        unshared = num_pages + self._headroom()
        if self._pulls is not None and self._pulls.pays(sequence, prefix, unshared):
            shared = prefix if self._pulls.shares(sequence, prefix) else None
            sequence.allocation = self._allocator.reserve(num_pages, shared)
            sequence.made += [shared] if shared is not None else []
            self._pulls.start(sequence)
            sequence.in_flight += 1
        else:
            sequence.allocation = self._allocator.reserve(num_pages, prefix)
            begin = WHOLE if prefix is None else Beginning(prefix.num_tokens, "gpu", prefix)
            self.begin(sequence, begin)

    def begin(self, sequence: Sequence, beginning: Beginning) -> None:
        """Start the sequence behind ``beginning``, which is in its pages."""
        if self._reuse is not None:
            self._reuse.admitted(sequence, beginning)

    def release(self, sequence: Sequence) -> None:
        """Free a prompt's pages and state slot, which nothing under way writes."""
        if self._reuse is not None:
            self._reuse.ended(sequence)
        assert sequence.allocation is not None, "released without pages"
        self._allocator.release(sequence.allocation)
        sequence.allocation = None

    def _shareable(self, sequence: Sequence, num_pages: int) -> KeptPrefix | None:
        return None if self._reuse is None else self._reuse.shareable(sequence, num_pages)

    def _num_pages(self, sequence: Sequence) -> int:
        return self._layout.pages_for(len(sequence.token_ids))
