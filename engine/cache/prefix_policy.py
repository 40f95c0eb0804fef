"""Chooses the places where a prompt's states are kept, and explains prefix misses. Pure."""

from collections.abc import Iterable
from typing import Literal

from engine.cache.place_kinds import Kind
from transport.wire.layout import CHUNK_ALIGNMENT
from transport.wire.prefix import PrefixKeys
from transport.wire.seen_pages import SeenPages

MIN_SAVED_TOKENS = 256
"""Tokens that a kept state must save a later prompt: 3 ms of prefill, for a state slot as large as
the KV of 2,900 tokens."""

QUESTION_TOKENS = 1024
"""Length of the end of a prompt that a later prompt with the same beginning may not share: a
question about a long document, or text that the next turn renders differently. A state is kept
before it."""

COARSE_TOKENS = 512
"""Long prompts keep the states of their ends at multiples of this, so that prompts that begin alike
and differ in length keep them at the same places."""

MAX_SEEN_PAGES = 1 << 18
"""Number of remembered page keys: 17 million tokens, in about 40 MB."""

Miss = Literal["new", "no_state", "evicted"]
"""Why a prompt found no longer prefix. ``new``: no earlier prompt began with more of it.
``no_state``: an earlier prompt did, but no state was kept within the common part. ``evicted``: such
a state was kept, but has been evicted."""


def places(
    num_tokens: int,
    *,
    start: int,
    boundaries: Iterable[int] = (),
    branch: int = 0,
    page_size: int,
    min_saved: int = MIN_SAVED_TOKENS,
) -> tuple[int, ...]:
    """The places beyond ``start`` where a prompt's states are kept, as ascending token counts.

    ``start`` tokens come from the cache, and chunks end at ``start`` and multiples of 64 behind it;
    so do all places, and each leaves a token to compute. ``boundaries``: where later prompts are
    expected to part from this one. ``branch``: length of the beginning that an earlier prompt had
    too. Of places less than ``min_saved`` apart only the first is used: every prompt that shares a
    later one shares it.
    """
    step = COARSE_TOKENS if num_tokens > 8 * COARSE_TOKENS else page_size
    ends = [end // step * step for end in (num_tokens - 1, num_tokens - 1 - QUESTION_TOKENS)]
    found: list[int] = []
    for place in sorted(min(place, num_tokens - 1) for place in {*ends, branch, *boundaries}):
        place -= (place - start) % CHUNK_ALIGNMENT
        if place - (found[-1] if found else start) >= min_saved:
            found.append(place)
    return tuple(found)


def last_page(num_tokens: int, *, start: int, page_size: int) -> tuple[int, ...]:
    """The only place of a prompt of a model without states, if it is beyond ``start``: the end of
    its last whole page that leaves a token to compute. Prompts find each page before it, and it
    need not be where a chunk ends."""
    last = (num_tokens - 1) // page_size * page_size
    return (last,) if last > start else ()


def kind_of(place: int, num_tokens: int, boundaries: Iterable[int], branch: int) -> Kind:
    """The kind of one of a prompt's ``places``; ``boundaries`` and ``branch`` as in ``places``."""
    if place <= branch:
        return "branch"
    if any(0 <= boundary - place < CHUNK_ALIGNMENT for boundary in boundaries):
        return "boundary"
    return "question" if num_tokens - place > QUESTION_TOKENS else "end"


def miss(seen: SeenPages, keys: PrefixKeys, num_reused: int, num_seen: int) -> Miss:
    """Why a prompt reuses only ``num_reused`` pages, although an earlier prompt began with its
    first ``num_seen`` pages."""
    if num_seen <= num_reused:
        return "new"
    beyond = keys.pages_up_to(num_seen)[num_reused + 1 :]
    return "evicted" if any(map(seen.was_kept, beyond)) else "no_state"
