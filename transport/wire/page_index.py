"""Finds prefixes by each of their whole pages. Pure.

Keys of pages are chained (prefix.py), so the pages of all prefixes are a tree, with one node for
each different page.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from transport.wire.prefix import PrefixKeys

P = TypeVar("P", bound=Hashable)


@dataclass(slots=True)
class _Page(Generic[P]):
    """A page of ``num_prefixes`` prefixes; those in ``ending`` have no whole page behind it.
    ``before`` is the key of the page before it, b"" for the first; ``following`` are those behind
    it."""

    before: bytes
    num_prefixes: int = 0
    following: list[bytes] = field(default_factory=list)
    ending: list[P] = field(default_factory=list)


class PageIndex(Generic[P]):
    """The prefixes that have a page, by the page's key. ``page_size`` is in tokens. A prefix is
    named by anything hashable, and added with the keys of its first 1, 2, ... whole pages."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._pages: dict[bytes, _Page[P]] = {}

    def __len__(self) -> int:
        """Number of different pages."""
        return len(self._pages)

    def fits(self, page_keys: Sequence[bytes]) -> bool:
        """False if a page is known behind another page, so that the keys are no chain."""
        known = (self._pages.get(key) for key in page_keys)
        chained = zip((b"", *page_keys), known, strict=False)
        is_chain = all(page is None or page.before == before for before, page in chained)
        return is_chain and len(set(page_keys)) == len(page_keys)

    def add(self, prefix: P, page_keys: Sequence[bytes]) -> None:
        """Add a prefix whose keys fit."""
        for before, key in zip((b"", *page_keys), page_keys, strict=False):
            page = self._pages.get(key)
            if page is None:
                page = self._pages[key] = _Page(before)
                if before:
                    self._pages[before].following.append(key)
            page.num_prefixes += 1
        if page_keys:
            self._pages[page_keys[-1]].ending.append(prefix)

    def remove(self, prefix: P, page_keys: Sequence[bytes]) -> None:
        """Remove a prefix that was added with these keys."""
        if page_keys:
            self._pages[page_keys[-1]].ending.remove(prefix)
        for key in reversed(page_keys):
            page = self._pages[key]
            page.num_prefixes -= 1
            if not page.num_prefixes:
                del self._pages[key]
                if page.before:
                    self._pages[page.before].following.remove(key)

    def longest(self, keys: PrefixKeys, max_tokens: int) -> tuple[P, int] | None:
        """A prefix that has the most whole pages of the prompt's first ``max_tokens`` tokens, with
        their number; None if no prefix has the first page."""
        low, high = 0, min(max_tokens // self._page_size, keys.num_pages)
        if not high or keys.pages(1) not in self._pages:
            return None
        while low < high:  # a prefix that has a page has all pages before it
            middle = (low + high + 1) // 2
            if keys.pages(middle) in self._pages:
                low = middle
            else:
                high = middle - 1
        page = self._pages[keys.pages(low)]
        while not page.ending:
            page = self._pages[page.following[0]]
        return page.ending[0], low
