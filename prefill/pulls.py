"""Copies prefixes that are kept elsewhere into the pages of a prompt.

A copy from a peer is like a handoff, but the peer holds nothing for it. The peer may evict the
prefix meanwhile: then the epoch of the state slot has changed, and the prompt is computed without
the prefix. A copy from host memory (engine/cache/host_tier.py) brings back a prefix that the device
had evicted. Copied prefixes are kept here, so that other prompts can reuse them without a copy.
"""

import logging
from collections.abc import Set
from dataclasses import dataclass

from engine.cache.allocator import CacheAllocation, CacheAllocator
from engine.cache.host_tier import HostTier
from engine.cache.kept import KeptPrefix
from engine.cache.place_kinds import Kind
from engine.sequence import Beginning, Sequence
from transport.copy.pull import CopyStream, Pull, Wanted
from transport.copy.queue import CopyQueue, Ended, Landing
from transport.wire.layout import CHUNK_ALIGNMENT
from transport.wire.messages import ReusedFrom
from transport.wire.offers import Offer, PrefixName

log = logging.getLogger(__name__)


@dataclass(eq=False)
class PrefixCopy:
    """A copy of the sequence's first ``num_tokens`` tokens, which ``reused_from`` keeps.
    ``making``: the prefix that is kept on the device when the copy has ended. ``invalidated``: the
    copied prefix may be wrong, and is not used."""

    sequence: Sequence
    num_tokens: int
    reused_from: ReusedFrom
    making: KeptPrefix | None = None
    invalidated: bool = False


class PrefixPulls:
    """Starts and ends the copies of prefixes; ``copies`` are under way. ``peers``: instances whose
    memory is open. Host memory is used if that saves ``min_saved_tokens`` tokens."""

    def __init__(
        self,
        allocator: CacheAllocator,
        puller: CopyStream,
        peers: Set[str],
        host: HostTier,
        copies: CopyQueue[PrefixCopy],
        *,
        min_saved_tokens: int,
    ) -> None:
        self.copies = copies
        self._allocator = allocator
        self._puller = puller
        self._peers = peers
        self._host = host
        self._min_saved = min_saved_tokens

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
            self._fetch(sequence, kept)
        else:
            assert source is not None, "a pull without a source"
            self._pull(sequence, source)

    def _pull(self, sequence: Sequence, source: Offer) -> None:
        # Only one conversation continues behind an answer, so an answer is not kept here too.
        is_answer = source.num_tokens % CHUNK_ALIGNMENT
        making = None if is_answer else self._begin(sequence, source, "copied")
        target = _target(sequence, making, source.num_tokens, source.digest)
        num_shared = _allocation(sequence).num_shared
        wanted = Wanted.into(target.pages, target.state_slot, source, num_shared=num_shared)
        (pull,) = self._puller.pull([wanted])
        self._add(PrefixCopy(sequence, source.num_tokens, "peer", making), pull, target)

    def _fetch(self, sequence: Sequence, kept: KeptPrefix) -> None:
        making = self._begin(sequence, kept, kept.kind)
        target = _target(sequence, making, kept.num_tokens)
        pages, num_shared = tuple(target.pages), _allocation(sequence).num_shared
        pull = self._host.fetch(kept, pages, target.state_slot, num_shared)
        self._add(PrefixCopy(sequence, kept.num_tokens, "host", making), pull, target)

    def _add(self, copy: PrefixCopy, pull: Pull, target: Landing) -> None:
        copy.sequence.pulling = pull
        self.copies.add(copy, pull, target)

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
        return [(ended.owner.sequence, self._end(ended)) for ended in self.copies.ended()]

    def _end(self, ended: Ended[PrefixCopy]) -> Beginning | None:
        copy, sequence, making = ended.owner, ended.owner.sequence, ended.owner.making
        sequence.pulling = sequence.source = None
        is_intact = self._is_intact(ended)
        if making is not None:
            sequence.making.remove(making)
            if not self._allocator.prefixes.finish(making, sound=is_intact):
                making = self._allocator.kept.get(making.key)
        return Beginning(copy.num_tokens, copy.reused_from, making) if is_intact else None

    def _is_intact(self, ended: Ended[PrefixCopy]) -> bool:
        if ended.stale or ended.owner.invalidated:
            return False
        if ended.damaged():
            log.error("a prefix changed while it was copied from a peer; it is not used",
                      extra=ended.owner.sequence.log_fields)  # fmt: skip
            return False
        return True

    def drop(self, name: PrefixName) -> None:
        """Do not use copies under way of this prefix, or of prefixes that continue it."""
        for copy in self.copies:
            copy.invalidated |= copy.sequence.begins_with(name, copy.num_tokens)

    def overdue(self) -> list[Sequence]:
        """Sequences whose copy is past its deadline, but has not ended: it still writes their
        slots."""
        late = [copy.sequence for copy in self.copies.overdue()]
        return [sequence for sequence in late if not sequence.ended]

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


def _allocation(sequence: Sequence) -> CacheAllocation:
    assert sequence.allocation is not None, "a copy without pages"
    return sequence.allocation


def _target(
    sequence: Sequence, making: KeptPrefix | None, num_tokens: int, digest: str = ""
) -> Landing:
    """The memory that a copied prefix fills: the sequence's pages, and the state slot of the prefix
    that is ``making``, or else the sequence's own."""
    allocation = _allocation(sequence)
    slot = allocation.slot if making is None else making.slot
    return Landing(allocation.pages, slot.id, num_tokens, digest)
