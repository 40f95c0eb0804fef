"""The pool of host-memory blocks, with an index of the pages that they hold. Pure."""

from collections.abc import Sequence

from engine.cache.kept import KeptPrefix
from engine.cache.pages import PagePool


class HostBlocks(PagePool):
    """A pool of blocks that finds whole pages by their keys, so that no page is stored twice. Only
    pages that a prefix keeps are found: a page that only a copy under way reads may be wrong."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def find(self, prefix: KeptPrefix) -> dict[int, int]:
        """The blocks that hold whole pages of a prefix, by its page ids."""
        pages = zip(prefix.pages, prefix.page_keys[1:], strict=False)
        return {page: self._block_of[key] for page, key in pages if key in self._block_of}

    def keep_prefix(self, prefix: KeptPrefix) -> None:
        """Add a keeper to the blocks of a prefix in host memory; its pages can be found from now
        on."""
        self.keep(prefix.pages)
        for key, block in zip(prefix.page_keys[1:], prefix.pages, strict=False):
            if self._block_of.setdefault(key, block) == block:
                self._key_of[block] = key

    def drop(self, ids: Sequence[int]) -> list[int]:
        freed = super().drop(ids)
        for block in ids:
            if block in self._key_of and not self.is_kept(block):
                del self._block_of[self._key_of.pop(block)]
        return freed
