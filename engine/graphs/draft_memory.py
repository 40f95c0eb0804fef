"""The memory that the graphs of steps with drafts share: the host's description of a step, and the
results that a graph leaves for the next one."""

from collections.abc import Sequence

import torch

from engine.batch import Row
from engine.block_tables import BlockTables
from engine.graphs.shared_pages import SharedPages
from engine.inputs import Inputs, Rows
from engine.kernels.batch.triton_drafts import Placed, SlotTables, StepRows
from engine.kernels.batch.triton_step_start import row_tables
from engine.kernels.dense.triton_linear import aligned
from engine.kernels.shared_reads import SharedReads
from transport.wire.layout import CacheLayout


class DraftMemory:
    """Memory for steps of up to ``num_rows`` sequences, with as many tokens as ``hidden`` has rows.

    ``tables`` are by state slot. ``verified`` and ``output`` are a step's input and output tokens;
    ``hidden`` [tokens, width] are the trunk's states of them, which the draft layer takes.
    ``shared``: what the rows of ``verified`` read together. ``accept`` writes ``last`` and
    ``num_out`` int64 [rows]. ``single`` has one token per row.
    """

    def __init__(
        self,
        layout: CacheLayout,
        tables: SlotTables,
        max_seq_len: int,
        num_rows: int,
        hidden: torch.Tensor,
        shared: SharedPages,
    ) -> None:
        device, num_slots, num_tokens = hidden.device, tables.lengths.shape[0], len(hidden)
        self._layout = layout
        self.tables, self.hidden = tables, hidden
        self.blocks = BlockTables(layout, num_slots, max_seq_len, device)
        self.shared = shared
        self._step = torch.zeros(4 * aligned(num_rows), dtype=torch.int32, device=device)
        self.verified = Placed.allocate(num_tokens, device)
        self.output = Placed.allocate(num_tokens, device)
        self.single = Placed.allocate(num_rows, device)
        self.last = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.num_out = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._verified_tables = self.blocks.ids.new_zeros(num_tokens, self.blocks.ids.shape[1])

    def write(
        self, bucket: int, rows: Sequence[Row], wanted: Sequence[int], starts: Sequence[int]
    ) -> None:
        """Describe the next step to the device: number of drafts ``wanted`` of each row, and tokens
        in its cache ``starts`` (-1: as in the tables)."""
        self.blocks.add(rows)
        padding = [0] * (aligned(bucket) - len(rows))
        rooms = [len(row.block_table) * self._layout.page_size for row in rows]
        values = [
            [*[row.state_slot for row in rows], *[-1] * len(padding)],
            [*wanted, *padding],
            [*starts, *padding],
            [*rooms, *padding],
        ]
        # A fresh pinned tensor a step: the one before may still be on its way.
        host = torch.tensor(values, dtype=torch.int32).pin_memory()
        self._step_of(bucket).copy_(host, non_blocking=True)

    def rows(self, bucket: int) -> StepRows:
        """The rows that were written for this bucket."""
        slots, num_drafts, starts, rooms = self._step_of(bucket)[:, :bucket]
        return StepRows(slots, num_drafts, starts, rooms)

    def _step_of(self, bucket: int) -> torch.Tensor:
        """The rows as [4, rows], contiguous, so that they are written by one copy."""
        return self._step[: 4 * aligned(bucket)].view(4, aligned(bucket))

    def verified_inputs(self, size: int) -> Inputs:
        """Inputs of the first ``size`` tokens of ``verified``; ``output_inputs`` has the same block
        tables."""
        placed, tables = self.verified.first(size), self._verified_tables[:size]
        row_tables(self.blocks.ids, placed.held, placed.ends, self._layout.page_size, tables)
        return self._inputs(placed, tables, self.shared.reads if size > 1 else None)

    def output_inputs(self, size: int) -> Inputs:
        """Inputs of the first ``size`` tokens of ``output``, at the positions of ``verified``."""
        return self._inputs(self.output.first(size), self._verified_tables[:size])

    def single_inputs(self, placed: Placed) -> Inputs:
        """Inputs for a draft-layer pass over one token per sequence."""
        page_size = self._layout.page_size
        return self._inputs(
            placed, row_tables(self.blocks.ids, placed.held, placed.ends, page_size)
        )

    def _inputs(
        self, placed: Placed, tables: torch.Tensor, shared: SharedReads | None = None
    ) -> Inputs:
        num_tokens = placed.ids.shape[0]
        rows = Rows.of(
            self._layout,
            state_slots=placed.slots,
            ends=placed.ends,
            block_tables=tables,
            starts=(0,) * num_tokens,
            lens=(1,) * num_tokens,
            shared=shared,
        )
        return Inputs(
            prefill_ids=placed.ids[:0],
            positions=placed.positions,
            decode=rows,
            prefill=None,
            sample_index=placed.held,
            sample_slots=placed.sample_slots,
            sample_positions=placed.sample_positions,
            live=placed.sample_slots,
        )
