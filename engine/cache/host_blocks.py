"""Which blocks of host memory are free, and which of them have which page. Pure."""

from collections.abc import Sequence

from engine.cache.kept import KeptPrefix
from engine.cache.pages import PagePool


class HostBlocks(PagePool):
    """A pool of blocks that finds whole pages by their keys, to store none twice: those that a
    prefix keeps, and not what only a copy under way still reads, since that may be wrong."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def find(self, prefix: KeptPrefix) -> dict[int, int]:
        """The blocks that have whole pages of a prefix, by its page ids."""
        pages = zip(prefix.pages, prefix.page_keys[1:], strict=False)
        return {page: self._block_of[key] for page, key in pages if key in self._block_of}

    def keep_prefix(self, prefix: KeptPrefix) -> None:
        """One more keeper for the blocks of a prefix of host memory, whose pages can be found from
        now on."""
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
