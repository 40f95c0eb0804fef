"""What earlier prompts began with, at whichever worker. Pure.

Where a prompt leaves an earlier one, a third one is likely to leave both, so the worker of the
second is told to keep a state there. It finds such places itself too, but among its own prompts.
"""

from collections import OrderedDict

from transport.wire.prefix import PrefixKeys

MAX_PAGES = 512
"""Of each prompt: 32,768 tokens, hashed and noted in 0.5 ms."""
MAX_SEEN_PAGES = 1 << 17
"""Of all prompts: 8 million tokens, in about 20 MB."""


class SeenPages:
    """The keys of earlier prompts' pages; the least recently seen are forgotten."""

    def __init__(self, max_seen: int = MAX_SEEN_PAGES) -> None:
        self._max_seen = max_seen
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, keys: PrefixKeys) -> int:
        """Remember a prompt; returns how many of its pages an earlier one began with, 0 where it is
        more than are looked at: where the two part is not known then."""
        pages = keys.pages_up_to(min(keys.num_pages, MAX_PAGES, self._max_seen))[1:]
        num_seen = next((n for n, key in enumerate(pages) if key not in self._seen), len(pages))
        if num_seen == MAX_PAGES < keys.num_pages:
            num_seen = 0
        # The first page is noted last: what is remembered of a prompt is a prefix of it.
        for key in reversed(pages):
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > self._max_seen:
            self._seen.popitem(last=False)
        return num_seen
