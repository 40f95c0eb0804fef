"""Copies the window pages of prompts between work pages and the rings of state slots."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from engine.batch import Indexed, Row, together
from engine.upload import upload
from engine.window_pages import Copy, PassPages, WindowPages
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout, PoolSize

COPIED_BYTES = 64 << 20
"""Most bytes that are copied at a time: each copy has a temporary of this size."""


class Windows(Protocol):
    """The window pages of an engine. ``longest`` and ``groups`` divide batches (batch.passes)."""

    longest: int | None

    def groups(self, rows: Indexed) -> Iterable[Indexed]: ...

    def begin(self, rows: Sequence[Row]) -> PassPages | None:
        """Enqueue what precedes a pass. Returns its window pages, for its inputs."""
        ...

    def end(self, pages: PassPages | None) -> None:
        """Enqueue what follows the pass: its last tokens come into the rings of state slots."""
        ...


class NoWindows:
    """The window pages of an engine whose layers have none."""

    longest: int | None = None

    def groups(self, rows: Indexed) -> Iterable[Indexed]:
        return together(rows)

    def begin(self, rows: Sequence[Row]) -> PassPages | None:
        return None

    def end(self, pages: PassPages | None) -> None:
        pass


class RingWindows:
    """The window pages of ``cache``."""

    def __init__(self, layout: CacheLayout, pools: PoolSize, cache: CacheTensors) -> None:
        self._pages, self._tensor = WindowPages(layout, pools), cache.window_pages
        self._num_at_once = max(1, COPIED_BYTES // layout.window_page_bytes)
        self.longest: int | None = self._pages.longest_chunk

    def groups(self, rows: Indexed) -> Iterable[Indexed]:
        return self._pages.groups(rows)

    def begin(self, rows: Sequence[Row]) -> PassPages | None:
        pages = self._pages.of_pass(rows)
        self._copy(pages.before)
        return pages

    def end(self, pages: PassPages | None) -> None:
        assert pages is not None, "a pass without window pages"
        for copies in pages.after:
            self._copy(copies)

    def _copy(self, copies: list[Copy]) -> None:
        if not copies:
            return
        both = upload(torch.tensor(copies, dtype=torch.int64).T.contiguous(), self._tensor.device)
        for source, target in zip(*(part.split(self._num_at_once) for part in both), strict=True):
            self._tensor.index_copy_(0, target, self._tensor.index_select(0, source))


def windows_of(layout: CacheLayout, pools: PoolSize, cache: CacheTensors) -> Windows:
    """The window pages of an engine's layers."""
    return RingWindows(layout, pools, cache) if layout.ring_pages else NoWindows()
