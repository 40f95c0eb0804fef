"""Where states of a prompt are kept, and what earlier prompts have begun with. Pure."""

from collections import OrderedDict
from collections.abc import Iterable

from transport.wire.layout import CHUNK_ALIGNMENT
from transport.wire.prefix import PrefixKeys

MIN_SAVED_TOKENS = 256
"""What a kept state must save of a later prompt, in tokens."""
MAX_SEEN_PAGES = 1 << 18


def places(
    num_tokens: int,
    *,
    start: int,
    boundaries: Iterable[int],
    branch: int,
    page_size: int,
    min_saved: int = MIN_SAVED_TOKENS,
) -> tuple[int, ...]:
    """After how many tokens a prompt's states are kept, ascending."""
    wanted = {((num_tokens - 1) // page_size) * page_size, branch, *boundaries}
    found: list[int] = []
    for place in sorted(wanted, reverse=True):
        place = min(place, num_tokens - 1)
        place -= (place - start) % CHUNK_ALIGNMENT
        if place - start >= min_saved and (not found or found[-1] - place >= min_saved):
            found.append(place)
    return tuple(reversed(found))


class SeenPages:
    """The page keys of earlier prompts."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def note(self, keys: PrefixKeys) -> int:
        """How many pages of the prompt have been seen before."""
        num_seen = 0
        for n in range(1, keys.num_pages + 1):
            key = keys.pages(n)
            if key in self._seen:
                num_seen = n
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > MAX_SEEN_PAGES:
            self._seen.popitem(last=False)
        return num_seen
