"""The page pool: which pages are free, and how many users and keepers each other page has."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from transport.wire.errors import PoolExhausted


class PagePool:
    """Hands out page ids, and counts who holds them; does not touch the pages themselves.

    A page is *used* by sequences and *kept* by prefixes of earlier ones, by several of each, and
    free when nothing holds it. Releasing a page that is not held is a bug and fails an assertion.
    """

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._used = [0] * num_pages
        self._kept = [0] * num_pages
        self._num_only_kept = 0
        self._num_uses = self._num_keeps = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_only_kept(self) -> int:
        """Number of pages that only prefixes keep; they become free with these prefixes."""
        return self._num_only_kept

    @property
    def num_held(self) -> int:
        return self._num_pages - len(self._free)

    @property
    def references(self) -> tuple[int, int]:
        """Sums of the pages that each user holds, and that each keeper holds."""
        return self._num_uses, self._num_keeps

    def grow(self, num_pages: int) -> None:
        """Grow the pool to ``num_pages`` pages; the new pages are free."""
        num_new = num_pages - self._num_pages
        assert num_new >= 0, f"{num_pages} pages, {self._num_pages} before"
        self._free[:0] = range(num_pages - 1, self._num_pages - 1, -1)
        self._used += [0] * num_new
        self._kept += [0] * num_new
        self._num_pages = num_pages

    def reserve(self, n: int) -> tuple[int, ...]:
        """Reserve ``n`` free pages for one user; raises PoolExhausted, reserving none."""
        assert n >= 0, n
        if n > len(self._free):
            raise PoolExhausted(f"{n} pages asked for, {len(self._free)} of {self._num_pages} free")
        ids = tuple(self._free.pop() for _ in range(n))
        for page in ids:
            self._used[page] = 1
        self._num_uses += n
        return ids

    def use(self, ids: Sequence[int]) -> None:
        """Add a user to pages that are held."""
        for page in ids:
            assert self._used[page] or self._kept[page], f"page {page} is not held"
            self._num_only_kept -= not self._used[page]
            self._used[page] += 1
        self._num_uses += len(ids)

    def release(self, ids: Sequence[int]) -> list[int]:
        """Remove a user; returns the pages that are free now."""
        for page in ids:
            assert self._used[page], f"page {page} is not held"
            self._used[page] -= 1
            self._num_only_kept += not self._used[page] and self._kept[page] > 0
        self._num_uses -= len(ids)
        return self._reclaim(ids)

    def keep(self, ids: Sequence[int]) -> None:
        """Add a keeper to pages that are held."""
        for page in ids:
            assert self._used[page] or self._kept[page], f"page {page} is not held"
            self._kept[page] += 1
        self._num_keeps += len(ids)

    def drop(self, ids: Sequence[int]) -> list[int]:
        """Remove a keeper; returns the pages that are free now."""
        for page in ids:
            assert self._kept[page], f"page {page} is not kept"
            self._kept[page] -= 1
            self._num_only_kept -= not self._used[page] and not self._kept[page]
        self._num_keeps -= len(ids)
        return self._reclaim(ids)

    def is_kept(self, page: int) -> bool:
        return self._kept[page] > 0

    def count_only_kept(self, ids: Sequence[int]) -> int:
        """Number of a keeper's pages that no sequence uses. They are its last ones, because a user
        of one of its pages also uses the pages before."""
        return len(ids) - bisect_left(ids, True, key=lambda page: not self._used[page])

    def num_used_only_by(self, holds: Iterable[Sequence[int]]) -> int:
        """Number of pages that no sequence uses once each of ``holds``, a use of some pages, has
        ended."""
        ending = Counter(page for ids in holds for page in ids)
        return sum(self._used[page] == num for page, num in ending.items())

    def num_kept_once(self, ids: Sequence[int]) -> int:
        """Number of a keeper's pages that no other prefix keeps. They are its last ones, because a
        prefix that shares one of its pages also shares the pages before."""
        return len(ids) - bisect_left(ids, True, key=lambda page: self._kept[page] == 1)

    def _reclaim(self, ids: Sequence[int]) -> list[int]:
        freed = [page for page in ids if not self._used[page] and not self._kept[page]]
        self._free += freed
        return freed

    def check(self) -> None:
        """Raise AssertionError unless every page is either free or held, exactly once."""
        free = set(self._free)
        held = {page for page in range(self._num_pages) if self._used[page] or self._kept[page]}
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & held, f"pages both free and held: {sorted(free & held)}"
        assert free | held == set(range(self._num_pages)), "pages lost or invented"
        only = sum(not self._used[page] for page in held)
        assert only == self._num_only_kept, f"{self._num_only_kept} only kept, not {only}"
