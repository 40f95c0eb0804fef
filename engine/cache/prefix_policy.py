"""Where states of a prompt are kept, and what earlier prompts have begun with. Pure."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Literal

from engine.cache.place_kinds import Kind
from transport.wire.layout import CHUNK_ALIGNMENT
from transport.wire.prefix import PrefixKeys

MIN_SAVED_TOKENS = 256
"""What a kept state must save of a later prompt, in tokens: 3 ms of prefill, for a state slot that
has the bytes of 2,900 tokens of KV."""

QUESTION_TOKENS = 1024
"""How much the end of a prompt may differ from that of a later one that shares the rest: a question
about a long document, or text that the next turn writes otherwise. A state is kept before it."""

COARSE_TOKENS = 512
"""Long prompts keep the states of their ends at multiples of this, so that prompts that begin alike
and differ in length keep them at the same places."""

MAX_SEEN_PAGES = 1 << 18
"""Keys that are remembered: those of 17 million tokens, in about 40 MB."""

Miss = Literal["new", "no_state", "evicted"]
"""Why a prompt found no longer prefix. ``new``: no earlier prompt began with more of it.
``no_state``: one did, but no state was kept in what they share. ``evicted``: one was."""


def places(
    num_tokens: int,
    *,
    start: int,
    boundaries: Iterable[int] = (),
    branch: int = 0,
    page_size: int,
    min_saved: int = MIN_SAVED_TOKENS,
) -> tuple[int, ...]:
    """After how many tokens a prompt's states are kept, ascending, beyond ``start``.

    ``start`` tokens come from the cache, and chunks end at ``start`` and multiples of 64 behind it;
    so do all places, and each leaves a token to compute. ``boundaries``: where later prompts are
    expected to part from this one. ``branch``: what an earlier prompt began with too. Of places
    that are less than ``min_saved`` apart the first is taken: what shares the others shares it.
    """
    step = COARSE_TOKENS if num_tokens > 8 * COARSE_TOKENS else page_size
    ends = [end // step * step for end in (num_tokens - 1, num_tokens - 1 - QUESTION_TOKENS)]
    found: list[int] = []
    for place in sorted(min(place, num_tokens - 1) for place in {*ends, branch, *boundaries}):
        place -= (place - start) % CHUNK_ALIGNMENT
        if place - (found[-1] if found else start) >= min_saved:
            found.append(place)
    return tuple(found)


def kind_of(place: int, num_tokens: int, boundaries: Iterable[int], branch: int) -> Kind:
    """What one of the ``places`` of a prompt is. ``branch``: another prompt begins with it too."""
    if place <= branch:
        return "branch"
    if any(0 <= boundary - place < CHUNK_ALIGNMENT for boundary in boundaries):
        return "boundary"
    return "question" if num_tokens - place > QUESTION_TOKENS else "end"


class SeenPages:
    """The keys of earlier prompts' pages, evicted or not; the least recently seen are forgotten."""

    def __init__(self, max_pages: int = MAX_SEEN_PAGES) -> None:
        self._max_pages = max_pages
        self._seen: OrderedDict[bytes, bool] = OrderedDict()  # whether a state was kept behind it

    def note(self, keys: PrefixKeys) -> int:
        """Remember a prompt; returns how many of its pages an earlier one began with."""
        num_seen = self._num_seen(keys)
        # The first page is noted last: what is remembered of a prompt is a prefix of it.
        for num_pages in range(min(keys.num_pages, self._max_pages), 0, -1):
            self._seen.setdefault(keys.pages(num_pages), False)
            self._seen.move_to_end(keys.pages(num_pages))
        while len(self._seen) > self._max_pages:
            self._seen.popitem(last=False)
        return num_seen

    def note_kept(self, pages_key: bytes) -> None:
        """A state is kept behind these whole pages, or within the page after them."""
        if pages_key in self._seen:
            self._seen[pages_key] = True

    def miss(self, keys: PrefixKeys, num_pages_reused: int, num_pages_seen: int) -> Miss:
        """Why a prompt reuses no more pages than these; ``num_pages_seen`` as ``note`` said."""
        if num_pages_seen <= num_pages_reused:
            return "new"
        beyond = range(num_pages_reused + 1, num_pages_seen + 1)
        return "evicted" if any(self._seen.get(keys.pages(n)) for n in beyond) else "no_state"

    def _num_seen(self, keys: PrefixKeys) -> int:
        for num_pages in range(keys.num_pages):
            if keys.pages(num_pages + 1) not in self._seen:
                return num_pages
        return keys.num_pages
