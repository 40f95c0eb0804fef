"""Decode steps as CUDA graphs: one per batch bucket, from the fed tokens to the logits.

A batch runs in the smallest bucket that holds it; padding rows have state slot -1, which every
kernel skips. A graph reads static memory: state slots and ends of the step, copied there before
each replay, and one block table per state slot, to which only new pages are added. Those of window
pages never change.
Steps that several workers compute together (engine/spread) have graphs of their own. With such
steps, states have a ring of one entry (kernels/state_ring.py): a local step applies the update that
the last spread step has left in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.batch import Row
from engine.block_tables import BlockTables
from engine.cache.state_ring import StateRing
from engine.config import DECODE_BUCKETS, MAX_DECODE_ROWS
from engine.divided_gpu import DividedGpu
from engine.graphs.graph_pool import Graph, GraphPool
from engine.graphs.shared_pages import SharedPages
from engine.inputs import DraftRows, Inputs, Rows, ring_tables
from engine.kernels.interface import Kernels
from engine.kernels.shared_reads import rows_of_tile
from engine.model.model import Model, finished
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout

LOCAL = 0
"""The group size of a local step."""

Stepped = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Logits [rows, ids], and int64 [rows] state slots and positions of the tokens to come."""


def buckets_below(num_slots: int, buckets: Sequence[int]) -> tuple[int, ...]:
    """The row counts to capture: the buckets below the number of state slots, and one with a row
    for each slot, up to the largest step."""
    most = min(num_slots, MAX_DECODE_ROWS)
    return (*(bucket for bucket in buckets if bucket < most), most)


@dataclass(frozen=True)
class Trunk:
    """The model that graphs compute, with its cache and kernels. No sequence is longer than
    ``max_seq_len`` tokens. ``divided``: the GPU as decode steps share it with prompts, if they
    do."""

    model: Model
    cache: CacheTensors
    layout: CacheLayout
    kernels: Kernels
    max_seq_len: int
    divided: DividedGpu | None = None

    def shared_pages(self, num_rows: int) -> SharedPages:
        """What up to ``num_rows`` rows of a step read together."""
        attention, device = self.model.config.attention, self.cache.kv.device
        tile_rows = rows_of_tile(attention.num_attention_heads, attention.num_key_value_heads)
        return SharedPages(self.layout, tile_rows, num_rows, device)


class DecodeGraphs:
    """Captured decode steps. ``next_token`` [state slots] int64: the tokens that rows feed.
    ``logits`` float32 [rows, ids]: where each step leaves its logits. ``spreads``: there may be
    steps that several workers compute together. ``buckets``: row counts of captured steps."""

    def __init__(
        self,
        trunk: Trunk,
        next_token: torch.Tensor,
        logits: torch.Tensor,
        *,
        spreads: bool = False,
        buckets: Sequence[int] = DECODE_BUCKETS,
    ) -> None:
        self._model, self._cache = trunk.model, trunk.cache
        self._layout, self._kernels = trunk.layout, trunk.kernels
        self._next_token, self.logits = next_token, logits
        self._device = next_token.device
        num_slots = next_token.shape[0]
        self.buckets = buckets_below(num_slots, buckets)
        self._tables = BlockTables(trunk.layout, num_slots, trunk.max_seq_len, self._device)
        slots, width = torch.arange(num_slots, dtype=torch.int32), self._tables.ids.shape[1]
        self._window_tables = (
            ring_tables(slots.to(self._device), trunk.layout, width)
            if trunk.layout.ring_pages
            else None
        )
        self._shared = trunk.shared_pages(self.buckets[-1])
        # State slots and ends.
        self._step = torch.zeros(2, self.buckets[-1], dtype=torch.int32, device=self._device)
        self._fed = torch.zeros(self.buckets[-1], dtype=torch.int64, device=self._device)
        self._pending = torch.zeros(num_slots, dtype=torch.int32, device=self._device)
        self._rings: tuple[StateRing, ...] = ()
        if spreads:
            shape, dtype = trunk.kernels.ring_shape(trunk.layout), trunk.cache.conv.dtype
            self._rings = StateRing.allocate(trunk.layout, 1, shape, dtype, self._pending)
        self._pool = GraphPool(trunk.divided)
        self._graphs: dict[tuple[int, int], Graph[Stepped]] = {}

    def capture(self) -> None:
        """Compile every kernel and capture every bucket."""
        self._capture(LOCAL, self.buckets, self._kernels)

    def capture_spread(self, size: int, buckets: Sequence[int], kernels: Kernels) -> None:
        """Capture the steps of groups of up to ``size`` members, with a member's kernels."""
        assert size > LOCAL
        assert self._rings, "graphs without spread steps"
        self._capture(size, buckets, kernels)

    @torch.inference_mode()
    def _capture(self, size: int, buckets: Sequence[int], kernels: Kernels) -> None:
        """Capture these buckets, largest first, in one memory pool."""
        for bucket in sorted(buckets, reverse=True):
            self._write_step(bucket, (), ())
            forward = partial(self._forward, bucket, kernels, spread=size > LOCAL)
            forward()
            self._graphs[size, bucket] = self._pool.capture(forward)
            if size > LOCAL:
                # Run the kernels that follow a step once, on padding: a member that compiles a
                # kernel after it has committed to a step is late.
                self.settle_spread(1, torch.zeros(1, dtype=torch.int32, device=self._device))

    @torch.inference_mode()
    def forget(self, state_slot: int) -> None:
        """Reset a slot for a new owner: its block table is empty, and its state has all tokens."""
        self._tables.forget(state_slot)
        self._shared.forget()
        if self._rings:
            self._pending[state_slot] = 0

    def launch(self, rows: Sequence[Row]) -> Stepped:
        """Enqueue one step of decode ``rows``. The returned tensors may be used by work enqueued
        before the next launch: everything is ordered on the current stream."""
        return self._launch(LOCAL, next(b for b in self.buckets if b >= len(rows)), rows)

    def launch_spread(self, size: int, bucket: int, rows: Sequence[Row]) -> Stepped:
        """Enqueue a step that all members launch with this bucket, each with its own rows; a member
        may have none. ``settle_spread`` must follow after all work that uses the step."""
        assert len(rows) <= bucket
        return self._launch(size, bucket, rows)

    def settle_spread(self, num_rows: int, aborted: torch.Tensor) -> None:
        """Enqueue the end of a spread step, after the sampling of its rows: unless ``aborted``
        (int32 [1] on the device) is 0, the sequences are reset to before the step."""
        from engine.spread.triton_settle import settle

        slots = self._step[0, :num_rows]
        settle(slots, self._fed, aborted, self._pending, self._next_token)

    def _launch(self, size: int, bucket: int, rows: Sequence[Row]) -> Stepped:
        self._tables.add(rows)
        self._shared.write(rows, 1)
        self._write_step(bucket, [row.state_slot for row in rows], [row.start + 1 for row in rows])
        logits, slots, ends = self._graphs[size, bucket].replay()
        return logits[: len(rows)], slots[: len(rows)], ends[: len(rows)]

    def _write_step(self, bucket: int, slots: Sequence[int], ends: Sequence[int]) -> None:
        padding = bucket - len(slots)
        values = [[*slots, *[-1] * padding], [*ends, *[0] * padding]]
        # A fresh pinned tensor a step: the one before may still be on its way.
        host = torch.tensor(values, dtype=torch.int32).pin_memory()
        self._step[:, :bucket].copy_(host, non_blocking=True)

    def _forward(self, bucket: int, kernels: Kernels, *, spread: bool = False) -> Stepped:
        from engine.kernels.batch.triton_step_start import start_step

        slots, ends, ids = self._step[0, :bucket], self._step[1, :bucket], self._fed[:bucket]
        page_size = self._layout.page_size
        step = start_step(slots, ends, self._next_token, self._tables.ids, page_size, ids)
        rows = Rows.of(
            self._layout,
            state_slots=slots,
            ends=ends,
            block_tables=step.tables,
            starts=(0,) * bucket,
            lens=(1,) * bucket,
            shared=self._shared.reads if bucket > 1 else None,
        )
        nothing = torch.empty(0, dtype=torch.int64, device=self._device)
        inputs = Inputs(
            prefill_ids=nothing,
            positions=step.positions,
            decode=rows,
            prefill=None,
            sample_index=step.held,
            sample_slots=step.held,
            sample_positions=step.ends,
            live=slots,
        )
        if self._window_tables is not None:
            tables = self._window_tables.index_select(0, slots.clamp(min=0))
            inputs.window_rows = rows.in_windows(self._layout, tables), None
        if self._rings:
            inputs.drafts = DraftRows(
                slots, (1,) * bucket, self._rings, num_stored=0 if spread else 1
            )
        hidden = finished(self._model.forward(inputs, ids, self._cache, kernels))
        logits = self.logits[:bucket]
        self._model.logits(hidden, logits.shape[1], kernels, logits)
        if self._rings and not spread:
            from engine.spread.triton_settle import applied

            applied(slots, self._pending)
        return logits, step.held, step.ends
