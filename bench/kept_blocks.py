"""An LRU of blocks of prompts: which prefix of a prompt earlier ones have left in a cache."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class KeptBlocks:
    """Keeps the ``num_blocks`` blocks that were used last, by their keys."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._kept: OrderedDict[Hashable, None] = OrderedDict()

    def num_hits(self, keys: Sequence[Hashable]) -> int:
        """Number of the first ``keys`` in a row whose blocks are kept."""
        return next((n for n, key in enumerate(keys) if key not in self._kept), len(keys))

    def keep(self, keys: Sequence[Hashable]) -> None:
        """Keep the blocks of a prompt; of these the first ones go last."""
        for key in reversed(keys):
            self._kept[key] = None
            self._kept.move_to_end(key)
        while len(self._kept) > self._num_blocks:
            self._kept.popitem(last=False)
