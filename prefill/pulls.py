"""Prefixes that peers keep, copied into the pages and state slot of a prompt that begins with them.

A copy is like that of a handoff, but nothing is held at the peer for it: it may evict the prefix
meanwhile. The epoch of the state slot tells, and the prompt is computed without it then.
"""

import logging
from collections.abc import Callable, Set

from engine.cache.kept import KeptPrefix
from engine.sequence import Sequence
from transport.copy.pull import CopyStream, Wanted
from transport.wire.errors import StaleEpoch

log = logging.getLogger(__name__)


class PrefixPulls:
    """The copies under way. ``peers`` are those whose memory is open; a copy may take
    ``timeout_s``."""

    def __init__(
        self,
        puller: CopyStream,
        peers: Set[str],
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._puller = puller
        self._peers = peers
        self._timeout_s = timeout_s
        self._clock = clock
        self._under_way: list[tuple[Sequence, float]] = []
        self.num_stale = 0

    def pays(self, sequence: Sequence, prefix: KeptPrefix | None) -> bool:
        """Whether a peer keeps more of the sequence than ``prefix``, which is kept here."""
        source = sequence.source
        if source is None or source.instance not in self._peers:
            return False
        if not 0 < source.num_tokens < sequence.num_tokens:
            return False
        return source.num_tokens > (prefix.num_tokens if prefix else 0)

    def start(self, sequence: Sequence) -> None:
        """Copy the sequence's source into its own pages and state slot."""
        source, allocation = sequence.source, sequence.allocation
        assert source is not None, "a pull without a source"
        assert allocation is not None, "a pull without pages"
        pages = tuple(allocation.pages[: len(source.block_table)])
        (sequence.pulling,) = self._puller.pull([Wanted(source, pages, allocation.slot.id)])
        self._under_way.append((sequence, self._clock() + self._timeout_s))

    def done(self) -> list[tuple[Sequence, int]]:
        """Sequences whose copy has ended, and how many tokens it brought: 0 when the peer had
        evicted them. Those have no source any more."""
        found = []
        for sequence, deadline in list(self._under_way):
            pull, source = sequence.pulling, sequence.source
            assert pull is not None, "not being pulled"
            assert source is not None, "a pull without a source"
            if not pull.done():
                continue
            self._under_way.remove((sequence, deadline))
            sequence.pulling = sequence.source = None
            try:
                pull.result()
            except StaleEpoch:
                self.num_stale += 1
                found.append((sequence, 0))
            else:
                sequence.reused, sequence.missed_drafts = "peer", source.missed_drafts
                found.append((sequence, source.num_tokens))
        return found

    def overdue(self) -> list[Sequence]:
        """Those past their deadline that have not ended. Their copies still write their slots."""
        now = self._clock()
        return [s for s, deadline in self._under_way if now >= deadline and not s.ended]

    def wait(self, timeout_s: float) -> None:
        """Wait until all copies under way are done, at most ``timeout_s``."""
        deadline = self._clock() + timeout_s
        for sequence, _ in self._under_way:
            assert sequence.pulling is not None, "not being pulled"
            if not sequence.pulling.wait(max(0.0, deadline - self._clock())):
                return

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)
