"""Remembers the pages that earlier prompts began with. Pure.

Where two prompts part, a third prompt is likely to part from both, so a state is kept there. Each
worker remembers its own prompts; the coordinator remembers the prompts of all workers, and tells
the worker of the second prompt.
"""

from collections import OrderedDict

from transport.wire.prefix import PrefixKeys


class SeenPages:
    """The keys of earlier prompts' pages, and whether a state was kept behind them. The last
    ``max_seen`` keys are remembered. Only the first ``max_pages`` of each prompt are looked at;
    None: all."""

    def __init__(self, max_seen: int, max_pages: int | None = None) -> None:
        self._max_seen = max_seen
        self._max_pages = max_pages
        self._seen: OrderedDict[bytes, bool] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, keys: PrefixKeys) -> int:
        """Remember a prompt. Returns the number of its first pages that an earlier prompt began
        with; 0 if that is all pages that are looked at, since it is unknown where the two part."""
        num_pages, seen = keys.num_pages, self._seen
        looked_at = num_pages if self._max_pages is None else min(num_pages, self._max_pages)
        pages = keys.pages_up_to(min(looked_at, self._max_seen))[1:]
        num_seen = next((n for n, key in enumerate(pages) if key not in seen), len(pages))
        # The first page is noted last, so that the remembered pages of a prompt are a prefix of it.
        for key in reversed(pages):
            seen.setdefault(key, False)
            seen.move_to_end(key)
        while len(seen) > self._max_seen:
            seen.popitem(last=False)
        return 0 if num_seen == looked_at < num_pages else num_seen

    def note_kept(self, pages_key: bytes) -> None:
        """Note that a state is kept behind these whole pages, or within the page after them."""
        if pages_key in self._seen:
            self._seen[pages_key] = True

    def was_kept(self, pages_key: bytes) -> bool:
        """True if a state was ever kept there, evicted or not."""
        return self._seen.get(pages_key, False)
