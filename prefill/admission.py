"""Admits prompts: checks and reserves their memory, and finds the prefix that they reuse. Pure.

A prompt is admitted when a state slot and all pages that it does not share are free, so it can
always be finished. It starts behind its longest kept prefix, which is here (reuse.py), in host
memory or at a peer (pulls.py).
"""

from collections.abc import Callable

from engine.cache.allocator import CacheAllocator
from engine.cache.kept import KeptPrefix
from engine.sequence import WHOLE, Beginning, Sequence
from prefill.pulls import PrefixPulls
from prefill.reuse import PrefixReuse
from transport.wire.layout import CacheLayout


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
