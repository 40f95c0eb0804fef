"""Reuse of prefixes: what a prompt takes from earlier prompts and keeps for later ones. Pure.

    find      the longest kept prefix, when a prompt is admitted;
    waits     whether to wait instead, because a prompt being filled will soon keep a longer one;
    admitted  where to start computing, and where to keep states (prefix_policy.py);
    chunk     the length of the next chunk, and the state that it keeps;
    retired   a chunk is done: the prefix that it kept can be found from now on.

A prompt whose log-probabilities are asked for is computed whole, and has no keys.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from engine.batch import Keep
from engine.cache.allocator import CacheAllocator
from engine.cache.host_tier import HostTier
from engine.cache.kept import KeptPrefix
from engine.cache.prefix_policy import MAX_SEEN_PAGES, kind_of, last_page, miss, places
from engine.sequence import Beginning, Sequence
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout
from transport.wire.offers import PrefixName
from transport.wire.seen_pages import SeenPages

MAX_PLACES = 8
"""The most places at which a prompt keeps states: a chunk ends at each place except the last."""


class PrefixReuse:
    """The prefixes that a worker's prompts reuse and keep. ``counts``: PrefixCounts' fields about
    lookups."""

    def __init__(
        self,
        allocator: CacheAllocator,
        layout: CacheLayout,
        min_saved_tokens: int,
        host: HostTier,
    ) -> None:
        self._allocator = allocator
        self._host = host
        self._layout = layout
        self._min_saved = min_saved_tokens
        self._seen = SeenPages(MAX_SEEN_PAGES)
        self.counts: Counter[str] = Counter()

    def find(self, sequence: Sequence) -> KeptPrefix | None:
        """The longest kept prefix of the sequence that leaves at least one token to compute."""
        if sequence.keys is None:
            return None
        return self._allocator.prefixes.longest(sequence.keys, sequence.num_tokens - 1)

    def num_kept(self, sequence: Sequence) -> int:
        """The length of the longest prefix of a waiting sequence that is kept on the device, or
        that it waits for."""
        if sequence.keys is None:
            return 0
        kept, most = self._allocator.kept, sequence.num_tokens - 1
        found = kept.longest(sequence.keys, most)
        longest = kept.longer_part(sequence.keys, most, found) or found
        awaited = 0 if sequence.awaited is None else sequence.awaited[1]
        return max(awaited, 0 if longest is None else longest.num_tokens)

    def shareable(self, sequence: Sequence, num_pages: int) -> KeptPrefix | None:
        """The prefix that ``find`` returns, if ``num_pages`` pages that begin with it fit in
        memory."""
        prefix = self.find(sequence)
        if prefix is None or not self._allocator.can_share(num_pages, prefix):
            return None
        return prefix

    def waits(self, sequence: Sequence, filling: Iterable[Sequence]) -> bool:
        """True if a prompt being filled will soon keep a prefix of the sequence that is much longer
        than any kept now, so that it should not be computed or copied twice. That prompt is made to
        keep it, if it still can."""
        if sequence.keys is None:
            return False
        if sequence.awaited is not None and _is_coming(*sequence.awaited):
            return True
        found = self.find(sequence)
        on_host = self._host.longest(sequence.keys, sequence.num_tokens - 1)
        worth = (found.num_tokens if found else 0) + self._min_saved
        worth = max(worth, on_host.num_tokens if on_host else 0)
        sequence.awaited = None
        for other in filling:
            place = self._let_keep(other, sequence)
            if place >= worth:
                sequence.awaited = other, place
                return True
        return False

    def _let_keep(self, other: Sequence, sequence: Sequence) -> int:
        """Let ``other`` keep its common prefix with the sequence, unless it has passed the end of
        that. Returns the length of the longest common prefix that it is going to keep; 0: none."""
        if other.keys is None or (other.pulling is not None and not other.making):
            return 0
        shared = common_pages(other, sequence) * self._layout.page_size
        most = min(shared, sequence.num_tokens - 1, other.num_tokens - 1)
        most -= (most - other.beginning.num_tokens) % CHUNK_ALIGNMENT
        coming = [kept.num_tokens for kept in other.making]
        coming += [place for place in other.places if place > other.num_cached]
        best = max((num_tokens for num_tokens in coming if num_tokens <= most), default=0)
        add = most > other.num_cached and most - best >= self._min_saved
        add = add and other.pulling is None  # it has no places before it begins
        if not add or len(other.places) >= MAX_PLACES:
            return best
        other.places = sorted({*other.places, most})
        other.num_seen = max(other.num_seen, most)
        return most

    def admitted(self, sequence: Sequence, beginning: Beginning) -> None:
        """Note that the sequence has pages and is computed from the end of ``beginning`` on; choose
        the places where it keeps states."""
        sequence.beginning, sequence.num_cached = beginning, beginning.num_tokens
        sequence.awaited = None
        if sequence.keys is None:
            return
        self._allocator.kept.note_prompt(sequence.keys, sequence.num_tokens - 1)
        if beginning.prefix is not None:
            self._allocator.prefixes.pin(beginning.prefix)
            if beginning.reused == "gpu":  # a copy has counted the use of its prefix already
                self._allocator.kept.hit(beginning.prefix.key)
        num_seen = self._seen.note(sequence.keys)
        sequence.num_seen = num_seen * self._layout.page_size
        self._count(sequence, num_seen)
        sequence.places = list(self._places(sequence))

    def _places(self, sequence: Sequence) -> tuple[int, ...]:
        start, page_size = sequence.beginning.num_tokens, self._layout.page_size
        if not self._layout.has_states:
            return last_page(sequence.num_tokens, start=start, page_size=page_size)
        return places(
            sequence.num_tokens,
            start=start,
            boundaries=sequence.boundaries,
            branch=sequence.num_seen,
            page_size=page_size,
            min_saved=self._min_saved,
        )

    def _count(self, sequence: Sequence, num_pages_seen: int) -> None:
        assert sequence.keys is not None, "looked up without keys"
        counts, num_reused = self.counts, sequence.beginning.num_tokens
        counts["queried"] += sequence.num_tokens
        if sequence.beginning.reused:
            counts[f"reused_{sequence.beginning.reused}"] += num_reused
        if sequence.num_tokens - num_reused > self._min_saved:
            num_pages = num_reused // self._layout.page_size
            counts[f"missed_{miss(self._seen, sequence.keys, num_pages, num_pages_seen)}"] += 1

    def chunk(self, sequence: Sequence, length: int) -> tuple[int, Keep | None]:
        """Length of the next chunk, at most ``length`` tokens, and the state that it keeps. A chunk
        with two places ends at the first."""
        start = sequence.num_cached
        inside = [p - start for p in sequence.places if start < p <= start + length]
        if not inside:
            return length, None
        if len(inside) > 1:
            length = inside[0]
        assert sequence.allocation is not None, "computed without pages"
        assert sequence.keys is not None, "keeps without keys"
        place = start + inside[0]
        kind = kind_of(place, sequence.num_tokens, sequence.boundaries, sequence.num_seen)
        kept = self._allocator.prefixes.begin(sequence.allocation.pages, sequence.keys, place, kind)
        if kept is None:
            return length, None
        sequence.making.append(kept)
        return length, Keep(inside[0], kept.slot.id)

    def retired(self, sequence: Sequence, keep: Keep | None) -> None:
        """Process the end of one of the sequence's chunks; ``keep`` is the state that it kept."""
        prefix = self._unpin(sequence)
        if prefix is not None:
            sequence.made.append(prefix)
        if keep is not None:
            kept = sequence.making.pop(0)
            if self._allocator.prefixes.finish(kept):
                sequence.made.append(kept)
                found_by = kept.page_keys[-1:] if self._layout.has_states else kept.page_keys
                for key in found_by:
                    self._seen.note_kept(key)
                if kept.num_tokens <= sequence.num_seen:  # another prompt began like this too
                    self._allocator.kept.touch(kept.key)

    def ended(self, sequence: Sequence) -> None:
        """Release what the sequence still uses: no batch of it is or will be under way."""
        self._unpin(sequence)

    def invalidate(self, sequence: Sequence) -> list[PrefixName]:
        """Invalidate the prefix that a sequence began with and all that it kept, because its logits
        were not finite. Returns their names."""
        made, sequence.made = sequence.made, []
        for kept in made:
            self._invalidate(kept)
        if sequence.keys is not None and sequence.beginning.reused == "host":
            self._host.drop(sequence.keys.prefix(sequence.beginning.num_tokens))
        return [kept.name for kept in made]

    def drop(self, name: PrefixName) -> int:
        """Invalidate this prefix and all that continue it, also those that a batch or copy under
        way is making. Returns their number."""
        kept, on_host = self._allocator.prefixes.continuations(name), self._host.continuations(name)
        for each in kept:
            self._invalidate(each)
        for each in on_host:
            self._host.drop(each.key)
        return len(kept) + len(on_host)

    def _unpin(self, sequence: Sequence) -> KeptPrefix | None:
        """Unpin the prefix that a sequence began with, since its first chunk is done. Returns that
        prefix, if it had one."""
        prefix = sequence.beginning.prefix
        if prefix is not None:
            self._allocator.prefixes.unpin(prefix)
            sequence.beginning = replace(sequence.beginning, prefix=None)
        return prefix

    def _invalidate(self, kept: KeptPrefix) -> None:
        making = [each for each in self._allocator.prefixes.being_made if each.key == kept.key]
        for each in (kept, *making):  # it may be on its way back from host memory
            self._allocator.prefixes.invalidate(each)
        self._host.drop(kept.key)  # it may be in host memory by now, or on its way there


def _is_coming(other: Sequence, num_tokens: int) -> bool:
    """True if ``other`` has yet to keep its prefix of ``num_tokens`` tokens."""
    if other.ended:
        return False
    being_made = any(kept.num_tokens == num_tokens for kept in other.making)
    return being_made or (num_tokens > other.num_cached and num_tokens in other.places)


def common_pages(a: Sequence, b: Sequence) -> int:
    """Number of whole pages that both begin with. Keys are chained: after the first difference all
    keys differ."""
    assert a.keys is not None, "no keys"
    assert b.keys is not None, "no keys"
    low, high = 0, min(a.keys.num_pages, b.keys.num_pages)
    if a.keys.pages(0) != b.keys.pages(0):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if a.keys.pages(middle) == b.keys.pages(middle):
            low = middle
        else:
            high = middle - 1
    return low
