"""Copies prefixes that are kept elsewhere into the pages of a prompt.

A copy from a peer is like a handoff, but the peer holds nothing for it. The peer may evict the
prefix meanwhile: then the epoch of the state slot has changed, and the prompt is computed without
the prefix. A copy from host memory (engine/cache/host_tier.py) brings back a prefix that the device
had evicted. Copied prefixes are kept here, so that other prompts can reuse them without a copy.
"""

import logging
from collections.abc import Callable, Set
from dataclasses import dataclass

from engine.cache.allocator import CacheAllocator
from engine.cache.host_tier import HostTier
from engine.cache.kept import KeptPrefix
from engine.cache.place_kinds import Kind
from engine.sequence import Beginning, Sequence
from transport.copy.digest import digest
from transport.copy.pull import CopyStream, Pull, Wanted
from transport.copy.tensors import CacheTensors
from transport.wire.errors import StaleEpoch
from transport.wire.layout import CHUNK_ALIGNMENT
from transport.wire.messages import ReusedFrom
from transport.wire.offers import Offer, PrefixName

log = logging.getLogger(__name__)


@dataclass(eq=False)
class PrefixCopy:
    """A copy under way of the sequence's first ``num_tokens`` tokens, which ``reused_from`` keeps.
    The request fails at ``deadline``. ``making``: the prefix that is kept on the device when the
    copy is done. ``invalidated``: the copied prefix may be wrong, and is not used."""

    sequence: Sequence
    pull: Pull
    num_tokens: int
    reused_from: ReusedFrom
    deadline: float
    digest: str = ""
    making: KeptPrefix | None = None
    invalidated: bool = False


class PrefixPulls:
    """The copies under way. ``peers``: instances whose memory is open. A copy may take
    ``timeout_s``. Host memory is used if that saves ``min_saved_tokens`` tokens."""

    def __init__(
        self,
        allocator: CacheAllocator,
        puller: CopyStream,
        peers: Set[str],
        cache: CacheTensors,
        host: HostTier,
        timeout_s: float,
        clock: Callable[[], float],
        *,
        min_saved_tokens: int,
    ) -> None:
        self._allocator = allocator
        self._puller = puller
        self._peers = peers
        self._cache = cache
        self._host = host
        self._timeout_s = timeout_s
        self._clock = clock
        self._min_saved = min_saved_tokens
        self._under_way: list[PrefixCopy] = []
        self.num_stale = 0

    def pays(self, sequence: Sequence, prefix: KeptPrefix | None, unshared: int) -> bool:
        """True if a longer prefix of the sequence is kept elsewhere than ``prefix``, which is kept
        here. A copy that shares no pages needs ``unshared`` free pages."""
        if not (self.shares(sequence, prefix) or self._allocator.can_reserve(unshared)):
            return False
        num_here = prefix.num_tokens if prefix else 0
        source, on_host = self._source(sequence), self._on_host(sequence)
        if source is not None and source.num_tokens > num_here:
            return True
        return on_host is not None and on_host.num_tokens >= num_here + self._min_saved

    def shares(self, sequence: Sequence, prefix: KeptPrefix | None) -> bool:
        """True if the pages of ``prefix`` can be used instead of copied ones. False if every copy
        is verified: the same tokens' KV may differ in its last bits."""
        source = self._source(sequence)
        verified = source is not None and source.digest
        return prefix is not None and not verified

    def start(self, sequence: Sequence) -> None:
        """Start to copy the longest prefix of the sequence that is kept elsewhere into its pages
        and a state slot. Shared pages hold their part already."""
        source, kept = self._source(sequence), self._on_host(sequence)
        if kept is not None and (source is None or kept.num_tokens >= source.num_tokens):
            copy = self._fetch(sequence, kept)
        else:
            assert source is not None, "a pull without a source"
            copy = self._pull(sequence, source)
        sequence.pulling = copy.pull
        self._under_way.append(copy)

    def _pull(self, sequence: Sequence, source: Offer) -> PrefixCopy:
        allocation, deadline = sequence.allocation, self._clock() + self._timeout_s
        assert allocation is not None, "a copy without pages"
        # Only one conversation continues behind an answer, so an answer is not kept here too.
        is_answer = source.num_tokens % CHUNK_ALIGNMENT
        making = None if is_answer else self._begin(sequence, source, "copied")
        slot = making.slot if making is not None else allocation.slot
        wanted = Wanted.into(allocation.pages, slot.id, source, num_shared=allocation.num_shared)
        (pull,) = self._puller.pull([wanted])
        return PrefixCopy(
            sequence, pull, source.num_tokens, "peer", deadline, source.digest, making
        )

    def _fetch(self, sequence: Sequence, kept: KeptPrefix) -> PrefixCopy:
        allocation, deadline = sequence.allocation, self._clock() + self._timeout_s
        assert allocation is not None, "a copy without pages"
        making = self._begin(sequence, kept, kept.kind)
        slot = making.slot if making is not None else allocation.slot
        pages, num_shared = tuple(allocation.pages), allocation.num_shared
        pull = self._host.fetch(kept, pages, slot.id, num_shared)
        return PrefixCopy(sequence, pull, kept.num_tokens, "host", deadline, making=making)

    def _begin(
        self, sequence: Sequence, source: Offer | KeptPrefix, kind: Kind
    ) -> KeptPrefix | None:
        """Reserve a slot in which the copied state is kept; None: it is copied to the sequence's
        own slot, and not kept."""
        allocation, keys = sequence.allocation, sequence.keys
        if allocation is None or keys is None:
            return None
        making = self._allocator.prefixes.begin(allocation.pages, keys, source.num_tokens, kind)
        if making is not None:
            sequence.making.append(making)
        return making

    def done(self) -> list[tuple[Sequence, Beginning | None]]:
        """Sequences whose copy has ended, with the copied prefix. None: the peer had evicted it, it
        was damaged, or it was dropped meanwhile; then the sequence has no source any more."""
        ended = [copy for copy in self._under_way if copy.pull.done()]
        self._under_way = [copy for copy in self._under_way if copy not in ended]
        return [(copy.sequence, self._end(copy)) for copy in ended]

    def _end(self, copy: PrefixCopy) -> Beginning | None:
        sequence, making = copy.sequence, copy.making
        sequence.pulling = sequence.source = None
        is_intact = self._is_intact(copy)
        if making is not None:
            sequence.making.remove(making)
            if not self._allocator.prefixes.finish(making, sound=is_intact):
                making = self._allocator.kept.get(making.key)
        return Beginning(copy.num_tokens, copy.reused_from, making) if is_intact else None

    def _is_intact(self, copy: PrefixCopy) -> bool:
        try:
            copy.pull.result()
        except StaleEpoch:
            self.num_stale += 1
            return False
        if copy.invalidated:
            return False
        if copy.digest and copy.digest != self._digest(copy):
            log.error("a prefix changed while it was copied from a peer; it is not used",
                      extra=copy.sequence.log_fields)  # fmt: skip
            return False
        return True

    def _digest(self, copy: PrefixCopy) -> str:
        allocation, num_tokens = copy.sequence.allocation, copy.num_tokens
        assert allocation is not None, "copied without pages"
        slot = allocation.slot if copy.making is None else copy.making.slot
        num_pages = -(-num_tokens // self._cache.kv.shape[3])
        return digest(self._cache, tuple(allocation.pages[:num_pages]), slot.id, num_tokens)

    def drop(self, name: PrefixName) -> None:
        """Do not use copies under way of this prefix, or of prefixes that continue it."""
        for copy in self._under_way:
            copy.invalidated |= copy.sequence.begins_with(name, copy.num_tokens)

    def overdue(self) -> list[Sequence]:
        """Sequences whose copy is past its deadline, but not done: it still writes their slots."""
        now = self._clock()
        late = (copy.sequence for copy in self._under_way if now >= copy.deadline)
        return [sequence for sequence in late if not sequence.ended]

    def wait(self, timeout_s: float) -> None:
        """Wait until all copies under way are done, at most ``timeout_s``."""
        deadline = self._clock() + timeout_s
        for copy in self._under_way:
            if not copy.pull.wait(max(0.0, deadline - self._clock())):
                return

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    def _source(self, sequence: Sequence) -> Offer | None:
        """The offer of a prefix of the sequence that a peer with open memory keeps."""
        source = sequence.source
        if source is None or source.instance not in self._peers:
            return None
        return source if 0 < source.num_tokens < sequence.num_tokens else None

    def _on_host(self, sequence: Sequence) -> KeptPrefix | None:
        """The prefix of the sequence that host memory keeps."""
        if sequence.keys is None:
            return None
        return self._host.longest(sequence.keys, sequence.num_tokens - 1)
