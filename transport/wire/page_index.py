"""Finds prefixes by each of their whole pages. Pure."""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from transport.wire.prefix import PrefixKeys

P = TypeVar("P", bound=Hashable)


class PageIndex(Generic[P]):
    """The prefixes that have a page, by the page's key. ``page_size`` is in tokens. A prefix is
    named by anything hashable, and added with the keys of its first 1, 2, ... whole pages."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._having: dict[bytes, dict[P, None]] = {}

    def __len__(self) -> int:
        """Number of different pages."""
        return len(self._having)

    def add(self, prefix: P, page_keys: Sequence[bytes]) -> None:
        for key in page_keys:
            self._having.setdefault(key, {})[prefix] = None

    def remove(self, prefix: P, page_keys: Sequence[bytes]) -> None:
        for key in page_keys:
            having = self._having[key]
            del having[prefix]
            if not having:
                del self._having[key]

    def longest(self, keys: PrefixKeys, max_tokens: int) -> tuple[P, int] | None:
        """A prefix that has the most whole pages of the prompt's first ``max_tokens`` tokens, with
        their number; None if no prefix has the first page."""
        low, high = 0, min(max_tokens // self._page_size, keys.num_pages)
        if not high or keys.pages(1) not in self._having:
            return None
        while low < high:  # a prefix that has a page has all pages before it
            middle = (low + high + 1) // 2
            if keys.pages(middle) in self._having:
                low = middle
            else:
                high = middle - 1
        return next(iter(self._having[keys.pages(low)])), low
