"""The page pool's allocator: which pages are free, which are held."""

from collections.abc import Iterable

from transport.wire.errors import PoolExhausted


class PagePool:
    """Hands out page ids; does not touch the pages themselves.

    A reserved id belongs to the caller until it releases it. Releasing an id twice, or one that
    was never handed out, is our bug and fails an assertion.
    """

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def reserve(self, n: int) -> tuple[int, ...]:
        """``n`` page ids, or PoolExhausted with nothing taken."""
        assert n >= 0, n
        if n > len(self._free):
            raise PoolExhausted(f"{n} pages asked for, {len(self._free)} of {self._num_pages} free")
        ids = tuple(self._free.pop() for _ in range(n))
        self._held.update(ids)
        return ids

    def release(self, ids: Iterable[int]) -> None:
        for page in ids:
            assert page in self._held, f"page {page} is not held"
            self._held.remove(page)
            self._free.append(page)

    def check(self) -> None:
        """Raise AssertionError unless every page is either free or held, exactly once."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & self._held, f"pages both free and held: {sorted(free & self._held)}"
        assert free | self._held == set(range(self._num_pages)), "pages lost or invented"
