"""The inputs of a forward pass as tensors: built once per pass, read by every layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch

from engine import ragged
from engine.batch import Keep, Row
from engine.cache.state_ring import StateRing
from engine.kernels.shared_reads import SharedReads
from engine.upload import upload, upload_parts
from engine.window_pages import PassPages
from transport.wire.layout import CacheLayout

T = TypeVar("T")


@dataclass
class Rows:
    """The rows of one kind (decode, or prefill) in a pass, in token order.

    ``state_slots`` [rows], ``ends`` [rows] (tokens in the cache after this pass) and
    ``block_tables`` [rows, pages] are int64 on the device; a short table is padded with its own
    first page. ``starts`` and ``lens`` are the same facts on the host, ``keeps`` the state that
    each prefill row keeps (empty: no row keeps any), ``shared`` what decode rows read together.
    ``windowed``: the tables are those of window pages (engine/window_pages.py). A
    *KV row* is one token's ``[num_kv_heads, head_dim]`` when the page pool is viewed as ``[rows,
    kv_heads, head_dim]``. KV rows here are of K in the first attention layer; all others lie at a
    constant distance.
    """

    state_slots: torch.Tensor
    ends: torch.Tensor
    block_tables: torch.Tensor
    starts: tuple[int, ...]
    lens: tuple[int, ...]
    page_size: int
    page_rows: int
    keeps: tuple[Keep | None, ...] = ()
    shared: SharedReads | None = None
    windowed: bool = False
    _behind: ragged.BehindHistory | None = field(default=None, init=False)
    _windows: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = field(
        default_factory=dict, init=False
    )

    @classmethod
    def of(
        cls,
        layout: CacheLayout,
        *,
        state_slots: torch.Tensor,
        ends: torch.Tensor,
        block_tables: torch.Tensor,
        starts: tuple[int, ...],
        lens: tuple[int, ...],
        keeps: tuple[Keep | None, ...] = (),
        shared: SharedReads | None = None,
    ) -> "Rows":
        """Rows of a cache of ``layout``."""
        size = layout.page_size
        page_rows = layout.num_attention_layers * 2 * size
        return cls(state_slots, ends, block_tables, starts, lens, size, page_rows, keeps, shared)

    def in_windows(self, layout: CacheLayout, tables: torch.Tensor) -> "Rows":
        """The same rows as layers with window pages see them: with the tables of these pages."""
        page_rows = layout.num_window_layers * 2 * layout.page_size
        return replace(self, block_tables=tables, page_rows=page_rows, shared=None, windowed=True)

    @cached_property
    def max_end(self) -> int:
        return max(s + n for s, n in zip(self.starts, self.lens, strict=True))

    @cached_property
    def fresh(self) -> torch.Tensor | None:
        """True where a row begins from an empty state, bool [rows]; None when none does."""
        if 0 not in self.starts:
            return None
        return upload(torch.tensor([start == 0 for start in self.starts]), self.ends.device)

    @cached_property
    def blocks(self) -> ragged.Blocks:
        return ragged.Blocks.of(self.lens, self.ends.device)

    @cached_property
    def kept_rows(self) -> list[tuple[int, Keep]]:
        """The rows that keep a state, with their index."""
        return [(i, keep) for i, keep in enumerate(self.keeps) if keep is not None]

    @cached_property
    def kept_blocks(self) -> dict[int, list[tuple[int, int]]]:
        """Kept states by the last block of ``blocks`` that they include: (the row's place in
        ``blocks.order``, the state slot)."""
        kept: dict[int, list[tuple[int, int]]] = {}
        order = self.blocks.order.tolist() if self.kept_rows else []
        for row, keep in self.kept_rows:
            block = -(-keep.num_tokens // self.blocks.size) - 1
            kept.setdefault(block, []).append((order.index(row), keep.state_slot))
        return kept

    def behind_history(self, num_history: int) -> ragged.BehindHistory:
        if self._behind is None or self._behind.num_history != num_history:
            self._behind = ragged.BehindHistory.of(self.lens, num_history, self.ends.device)
        return self._behind

    @cached_property
    def context_rows(self) -> torch.Tensor:
        """KV rows of each row's tokens, int64 [rows, max_end].

        Past a row's end its last token repeats, so memory never written is never read.
        """
        positions = torch.arange(self.max_end, device=self.ends.device)
        positions = torch.minimum(positions, (self.ends - 1).unsqueeze(1))
        pages = self.block_tables.gather(1, positions // self.page_size)
        return pages * self.page_rows + positions % self.page_size

    @cached_property
    def new_rows(self) -> torch.Tensor:
        """KV rows that this pass writes, int64 [tokens]."""
        if len(self.lens) == 1:
            return self.context_rows[0, self.starts[0] :]
        if max(self.lens) == 1:
            return self.context_rows.gather(1, (self.ends - 1).unsqueeze(1)).squeeze(1)
        spans = zip(self.context_rows, self.starts, self.lens, strict=True)
        return torch.cat([rows[start : start + length] for rows, start, length in spans])

    @cached_property
    def context_mask(self) -> torch.Tensor | None:
        """True where a row has a token, bool [rows, 1, 1, max_end]; None if all rows are equally
        long."""
        if len({s + n for s, n in zip(self.starts, self.lens, strict=True)}) == 1:
            return None
        positions = torch.arange(self.max_end, device=self.ends.device)
        return (positions < self.ends.unsqueeze(1))[:, None, None]

    def context(self, window: int | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """KV rows of each row's last ``window`` tokens (None: of all), int64 [rows, length], and a
        mask, bool [rows, 1, 1, length], that is False where a row has fewer; None if none has."""
        if window is None or window >= self.max_end:
            return self.context_rows, self.context_mask
        if window not in self._windows:
            first = (self.ends - window).unsqueeze(1)
            positions = first + torch.arange(window, device=self.ends.device)
            index = self.context_rows.gather(1, positions.clamp(min=0))
            shorter = min(s + n for s, n in zip(self.starts, self.lens, strict=True)) < window
            self._windows[window] = index, (positions >= 0)[:, None, None] if shorter else None
        return self._windows[window]


@dataclass
class DraftRows:
    """Decode sequences whose states have a ring: one token each, then drafts to verify.

    Each token is one of ``Inputs.decode``'s rows; a sequence's ``counts`` tokens are adjacent.
    ``state_slots`` [sequences] on the device; ``rings`` are DeltaNet's, layer by layer.
    ``num_pending``: number of pending entries in each sequence's rings, if the host knows it. The
    states are stored behind the first ``num_stored`` tokens of each sequence: 1, or 0 if the step
    may be aborted, so that no token is certain.
    """

    state_slots: torch.Tensor
    counts: tuple[int, ...]
    rings: tuple[StateRing, ...]
    num_pending: tuple[int, ...] = ()
    num_stored: int = 1

    @cached_property
    def pending(self) -> list[tuple[int, torch.Tensor | None]]:
        """Pending entries in order: (entry, sequences that have it pending as bool [sequences], or
        None for all)."""
        every = torch.tensor(self.num_pending, device=self.state_slots.device)
        having = [every > i for i in range(max(self.num_pending))]
        return [(i, None if bool(mask.all()) else mask) for i, mask in enumerate(having)]

    def filled(self, x: torch.Tensor) -> torch.Tensor:
        """Pad runs: [tokens, …] -> [sequences, longest run, …], filled with each run's last
        token."""
        longest = max(self.counts)
        if x.shape[0] == longest * len(self.counts):
            return x.view(len(self.counts), longest, *x.shape[1:])
        ends = [*accumulate(self.counts)]
        places = [
            min(end - count + j, end - 1)
            for end, count in zip(ends, self.counts, strict=True)
            for j in range(longest)
        ]
        index = torch.tensor(places, device=x.device)
        return x.index_select(0, index).view(len(self.counts), longest, *x.shape[1:])

    def emptied(self, x: torch.Tensor) -> torch.Tensor:
        """Undo ``filled``: [sequences, longest run, …] -> [tokens, …]."""
        if sum(self.counts) == x.shape[0] * x.shape[1]:
            return x.reshape(-1, *x.shape[2:])
        return torch.cat([run[:count] for run, count in zip(x, self.counts, strict=True)])


@dataclass
class Inputs:
    """Tokens of one pass: decode rows first, then prefill chunks.

    ``prefill_ids`` [prefill tokens], ``positions`` [tokens], ``sample_index`` [sampled rows] (the
    tokens whose logits are wanted) and ``sample_slots`` [sampled rows] are int64 on the device;
    ``sample_positions`` [sampled rows] is the index that each sampled token will have.
    ``live`` (integers [tokens] on the device) is negative for a token whose results are unused, so
    that it needs no experts; None: all are used. Padding rows come last, with state slot -1, end 0
    and position -1. With ``drafts`` the decode rows are its sequences' tokens. ``window_rows``:
    ``decode`` and ``prefill`` with the tables of window pages, if the model has these.
    """

    prefill_ids: torch.Tensor
    positions: torch.Tensor
    decode: Rows | None
    prefill: Rows | None
    sample_index: torch.Tensor
    sample_slots: torch.Tensor
    sample_positions: torch.Tensor
    live: torch.Tensor | None = None
    drafts: DraftRows | None = None
    window_rows: tuple[Rows | None, Rows | None] | None = None
    _made: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value that a kernel set derives from this pass, made at its first use."""
        if name not in self._made:
            self._made[name] = make()
        found: T = self._made[name]
        return found

    @cached_property
    def windowed(self) -> "Inputs":
        """The same pass as layers with window pages see it."""
        assert self.window_rows is not None, "a pass without window pages"
        decode, prefill = self.window_rows
        return replace(self, decode=decode, prefill=prefill)

    @property
    def num_decode(self) -> int:
        return len(self.decode.lens) if self.decode else 0

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        layout: CacheLayout,
        device: torch.device,
        windows: PassPages | None = None,
    ) -> "Inputs":
        """Lay out ``rows``, whose decode rows come first; one transfer to the device. ``windows``:
        the window pages of the pass, if the model has these."""
        decode = [row for row in rows if row.token_ids is None]
        prefill = [row for row in rows if row.token_ids is not None]
        assert list(rows[: len(decode)]) == decode, "decode rows come first"
        ids: list[int] = []
        positions: list[int] = [row.start for row in decode]
        last_tokens: list[int] = list(range(len(decode)))
        for row in prefill:
            ids.extend(row.token_ids or ())
            positions.extend(range(row.start, row.start + row.length))
            last_tokens.append(len(positions) - 1)
        sampled = [(i, row) for i, row in zip(last_tokens, rows, strict=True) if row.sample]
        parts: list[Sequence[int] | np.ndarray] = [
            ids,
            positions,
            [i for i, _ in sampled],
            [row.state_slot for _, row in sampled],
            [row.start + row.length for _, row in sampled],
            *_host_rows(decode, layout),
            *_host_rows(prefill, layout),
        ]
        if windows is not None:
            parts.append(_host_tables(windows.tables))
        tensors = upload_parts(parts, torch.int64, device)
        inputs = cls(
            prefill_ids=tensors[0],
            positions=tensors[1],
            sample_index=tensors[2],
            sample_slots=tensors[3],
            sample_positions=tensors[4],
            decode=_device_rows(decode, layout, tensors[5:8]),
            prefill=_device_rows(prefill, layout, tensors[8:11]),
        )
        if windows is not None:
            inputs.window_rows = _window_rows(inputs, layout, tensors[11])
        return inputs


def _host_tables(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Tables one behind the other, each padded to the length of the longest."""
    padded = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int64)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded.ravel()


def _window_rows(
    inputs: Inputs, layout: CacheLayout, tables: torch.Tensor
) -> tuple[Rows | None, Rows | None]:
    """The decode and the prefill rows with the tables of window pages; ``tables``: of prompts."""
    decode, prefill = inputs.decode, inputs.prefill
    if decode is not None:
        of_rings = ring_tables(decode.state_slots, layout, decode.block_tables.shape[1])
        decode = decode.in_windows(layout, of_rings)
    if prefill is not None:
        prefill = prefill.in_windows(layout, tables.view(len(prefill.lens), -1))
    return decode, prefill


def ring_tables(state_slots: torch.Tensor, layout: CacheLayout, width: int) -> torch.Tensor:
    """The window pages of the first ``width`` pages of sequences in these state slots, which write
    to their slots' rings -> [state slots, width]."""
    pages = torch.arange(width, device=state_slots.device, dtype=state_slots.dtype)
    return state_slots[:, None] * layout.ring_pages + pages % layout.ring_pages


def _host_rows(rows: Sequence[Row], layout: CacheLayout) -> list[list[int]]:
    width = max((layout.pages_for(row.start + row.length) for row in rows), default=0)
    tables: list[int] = []
    for row in rows:
        pages = row.block_table[: layout.pages_for(row.start + row.length)]
        tables.extend(pages)
        tables.extend([pages[0]] * (width - len(pages)))
    return [[row.state_slot for row in rows], [row.start + row.length for row in rows], tables]


def _device_rows(
    rows: Sequence[Row], layout: CacheLayout, tensors: Sequence[torch.Tensor]
) -> Rows | None:
    if not rows:
        return None
    slots, ends, tables = tensors
    return Rows.of(
        layout,
        state_slots=slots,
        ends=ends,
        block_tables=tables.view(len(rows), -1),
        starts=tuple(row.start for row in rows),
        lens=tuple(row.length for row in rows),
        keeps=tuple(row.keep for row in rows),
    )
