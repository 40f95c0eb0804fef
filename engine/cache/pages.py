"""The page pool's allocator: which pages are free, and how many hold each of the others."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from transport.wire.errors import PoolExhausted


class PagePool:
    """Hands out page ids, and counts who holds them; does not touch the pages themselves.

    A page is *used* by sequences and *kept* by prefixes of earlier ones, by several of each, and
    free when nothing holds it. Giving back what is not held is our bug and fails an assertion.
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
        """Pages that no sequence uses, and that become free with the prefixes that keep them."""
        return self._num_only_kept

    @property
    def num_held(self) -> int:
        return self._num_pages - len(self._free)

    @property
    def references(self) -> tuple[int, int]:
        """How many pages all users and all keepers together hold."""
        return self._num_uses, self._num_keeps

    def grow(self, num_pages: int) -> None:
        """Have ``num_pages`` pages from now on, no fewer than before; the new ones are free."""
        num_new = num_pages - self._num_pages
        assert num_new >= 0, f"{num_pages} pages, {self._num_pages} before"
        self._free[:0] = range(num_pages - 1, self._num_pages - 1, -1)
        self._used += [0] * num_new
        self._kept += [0] * num_new
        self._num_pages = num_pages

    def reserve(self, n: int) -> tuple[int, ...]:
        """``n`` free pages for one user, or PoolExhausted with nothing taken."""
        assert n >= 0, n
        if n > len(self._free):
            raise PoolExhausted(f"{n} pages asked for, {len(self._free)} of {self._num_pages} free")
        ids = tuple(self._free.pop() for _ in range(n))
        for page in ids:
            self._used[page] = 1
        self._num_uses += n
        return ids

    def use(self, ids: Sequence[int]) -> None:
        """One more user for pages that are held."""
        for page in ids:
            assert self._used[page] or self._kept[page], f"page {page} is not held"
            self._num_only_kept -= not self._used[page]
            self._used[page] += 1
        self._num_uses += len(ids)

    def release(self, ids: Sequence[int]) -> list[int]:
        """One user fewer; returns the pages that are free now."""
        for page in ids:
            assert self._used[page], f"page {page} is not held"
            self._used[page] -= 1
            self._num_only_kept += not self._used[page] and self._kept[page] > 0
        self._num_uses -= len(ids)
        return self._reclaim(ids)

    def keep(self, ids: Sequence[int]) -> None:
        """One more keeper for pages that are held."""
        for page in ids:
            assert self._used[page] or self._kept[page], f"page {page} is not held"
            self._kept[page] += 1
        self._num_keeps += len(ids)

    def drop(self, ids: Sequence[int]) -> list[int]:
        """One keeper fewer; returns the pages that are free now."""
        for page in ids:
            assert self._kept[page], f"page {page} is not kept"
            self._kept[page] -= 1
            self._num_only_kept -= not self._used[page] and not self._kept[page]
        self._num_keeps -= len(ids)
        return self._reclaim(ids)

    def is_kept(self, page: int) -> bool:
        return self._kept[page] > 0

    def count_only_kept(self, ids: Sequence[int]) -> int:
        """How many of a keeper's pages no sequence uses: the last ones, for what uses a page of it
        also uses those before."""
        return len(ids) - bisect_left(ids, True, key=lambda page: not self._used[page])

    def num_used_only_by(self, holds: Iterable[Sequence[int]]) -> int:
        """How many pages no sequence uses any more once each of ``holds``, a use of some pages, has
        ended."""
        ending = Counter(page for ids in holds for page in ids)
        return sum(self._used[page] == num for page, num in ending.items())

    def num_kept_once(self, ids: Sequence[int]) -> int:
        """How many of a keeper's pages it alone keeps: the last ones, for what shares a page with
        it also shares those before."""
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
