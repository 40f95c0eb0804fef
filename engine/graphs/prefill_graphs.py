"""Short prefill passes as CUDA graphs, from the prompts' ids to the logits.

A pass is some 1,000 kernels, and the host takes 40 ms to enqueue them, while a GPU computes 4,000
tokens in less time. So passes up to that size run as one of a few graphs, the smallest that holds
their tokens and rows. Padding tokens have position -1 and no expert; padding rows are empty, and
kernels skip them. Everything that a graph reads of a pass is in one static buffer.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import torch

from engine.batch import Row
from engine.graphs.decode_graphs import Stepped
from engine.graphs.graph_pool import Graph, GraphPool
from engine.inputs import Inputs, Rows
from engine.kernels.batch.triton_prefill_plan import HostPlan, PrefillPlan, padded_sizes
from engine.kernels.interface import Kernels
from engine.model.model import Model, finished
from engine.upload import aligned_starts
from engine.window_pages import PassPages
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout

TOKENS = (128, 256, 512, 768, 1024, 1280, 1536, 2048, 3072, 4096)
MAX_PROMPTS = 32
ROWS = (1, MAX_PROMPTS)
MAX_PAGES = {1: 4096, MAX_PROMPTS: 1024}
"""The most pages of a row, by the rows of a graph: 262,144 tokens of context for a single prompt,
else 65,536. Whole block tables are sent with each pass."""
_PINNED_UNDER_WAY = 4
_NONE = np.empty(0, dtype=np.int32)

Buffer = TypeVar("Buffer", np.ndarray, torch.Tensor)


@dataclass(frozen=True)
class Shape:
    """The shape of one graph. ``lengths``: lengths of the static buffer's parts, int32. The last
    row is always empty. ``windowed``: there are tables of window pages, too."""

    tokens: int
    rows: int
    windowed: bool = False

    @cached_property
    def lengths(self) -> dict[str, int]:
        return {
            "ids": self.tokens,
            "positions": self.tokens,
            "slots": self.rows + 1,
            "ends": self.rows + 1,
            "sample_index": self.rows,
            "sample_slots": self.rows,
            "sample_positions": self.rows,
            **padded_sizes(self.tokens, self.rows),
            "tables": (self.rows + 1) * self.pages,
            "window_tables": (self.rows + 1) * self.pages * self.windowed,
        }

    @property
    def pages(self) -> int:
        """The most pages that a row can have."""
        return MAX_PAGES[self.rows]

    @cached_property
    def starts(self) -> list[int]:
        """Offsets of the parts in the static buffer, and the end of the last part."""
        return aligned_starts(list(self.lengths.values()), torch.int32)

    def split(self, buffer: Buffer) -> dict[str, Buffer]:
        """The parts of the static buffer, or of a buffer that is copied there."""
        places = zip(self.starts, self.lengths.items(), strict=False)
        return {name: buffer[start : start + length] for start, (name, length) in places}

    def parts(
        self, rows: Sequence[Row], layout: CacheLayout, windows: PassPages | None = None
    ) -> dict[str, np.ndarray]:
        """``rows`` (possibly none) in the form of the static buffer: every part, padded.
        ``windows``: their window pages, if the model has these."""
        sampled = [(i, row) for i, row in enumerate(rows) if row.sample]
        lens = [row.length for row in rows]
        ends = [row.start + row.length for row in rows]
        keeps = [row.keep for row in rows]
        plan = HostPlan.of([row.start for row in rows], lens, keeps=keeps)
        tables = [
            row.block_table[: layout.pages_for(end)] for row, end in zip(rows, ends, strict=True)
        ]
        positions = [np.arange(row.start, end) for row, end in zip(rows, ends, strict=True)]
        filled: dict[str, tuple[Sequence[int] | np.ndarray, int]] = {
            "ids": (np.concatenate([_NONE, *(np.array(row.token_ids) for row in rows)]), 0),
            "positions": (np.concatenate([_NONE, *positions]), -1),
            "slots": ([row.state_slot for row in rows], -1),
            "ends": (ends, 0),
            "sample_index": ([plan.firsts[i + 1] - 1 for i, _ in sampled], 0),
            "sample_slots": ([row.state_slot for _, row in sampled], 0),
            "sample_positions": ([ends[i] for i, _ in sampled], 0),
        }
        parts = {}
        for name, (values, padding) in filled.items():
            parts[name] = np.full(self.lengths[name], padding, dtype=np.int32)
            parts[name][: len(values)] = values
        padded = vars(plan.padded(self.tokens, self.rows))
        return {**parts, **{name: array.ravel() for name, array in padded.items()}} | {
            "tables": self._padded_tables(tables),
            "window_tables": self._padded_tables(windows.tables if windows else ())
            if self.windowed
            else _NONE,
        }

    def _padded_tables(self, tables: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
        padded = np.zeros((self.rows + 1, self.pages), dtype=np.int32)
        for row, table in zip(padded, tables, strict=False):
            row[: len(table)] = table
        return padded.ravel()


class PrefillGraphs:
    """Captured prefill passes of the Triton kernels. Each pass leaves its logits in ``logits``
    float32 [rows, ids], and the states of all its tokens in ``hidden`` [tokens, hidden], if given.
    No pass has more than ``max_tokens`` prompt tokens."""

    def __init__(
        self,
        model: Model,
        cache: CacheTensors,
        layout: CacheLayout,
        kernels: Kernels,
        logits: torch.Tensor,
        max_tokens: int,
        hidden: torch.Tensor | None = None,
    ) -> None:
        self._model, self._cache, self._layout = model, cache, layout
        self._kernels, self._logits, self._hidden = kernels, logits, hidden
        windowed = layout.ring_pages > 0
        self.shapes = [
            Shape(tokens, rows, windowed) for tokens in sizes(max_tokens) for rows in ROWS
        ]
        size = max(shape.starts[-1] for shape in self.shapes)
        self._static = torch.zeros(size, dtype=torch.int32, device=cache.kv.device)
        self._graphs: dict[Shape, Graph[Stepped]] = {}

    @torch.inference_mode()
    def capture(self) -> None:
        """Compile every kernel and capture every shape, largest first, in one memory pool."""
        pool = GraphPool()
        for shape in reversed(self.shapes):
            self._send(shape, ())
            self._forward(shape)
            self._graphs[shape] = pool.capture(partial(self._forward, shape))
        # torch keeps this memory for later: allocating from the driver waits for the pass under
        # way.
        held = [_staged(shape) for shape in self.shapes for _ in range(_PINNED_UNDER_WAY)]
        del held

    def shape_of(self, rows: Sequence[Row]) -> Shape | None:
        """The smallest shape that holds a pass of ``rows``. None if the pass has no graph: it is
        long, has many rows, or does not consist of prompts only."""
        if any(row.token_ids is None for row in rows):
            return None
        num_pages = self._layout.pages_for(max(row.start + row.length for row in rows))
        num_tokens = sum(row.length for row in rows)
        for shape in self.shapes:
            if shape.tokens >= num_tokens and shape.rows >= len(rows) and shape.pages >= num_pages:
                return shape
        return None

    def launch(
        self, shape: Shape, rows: Sequence[Row], windows: PassPages | None = None
    ) -> Stepped:
        """Enqueue a pass of ``rows``, with their window pages if the model has these. Returns the
        tensors that sampling needs, which may be used by work enqueued before the next launch."""
        self._send(shape, rows, windows)
        logits, slots, positions = self._graphs[shape].replay()
        n = sum(row.sample for row in rows)
        return logits[:n], slots[:n], positions[:n]

    def hidden_of(self, rows: Sequence[Row]) -> torch.Tensor:
        """The states of all tokens of the last launched pass, valid until the next launch."""
        assert self._hidden is not None, "no memory for all states"
        return self._hidden[: sum(row.length for row in rows)]

    def _send(self, shape: Shape, rows: Sequence[Row], windows: PassPages | None = None) -> None:
        # A fresh pinned tensor per pass: the previous one may still be on its way.
        staged = _staged(shape)
        parts = shape.parts(rows, self._layout, windows)
        for name, place in shape.split(staged.numpy()).items():
            place[:] = parts[name]
        self._static[: len(staged)].copy_(staged, non_blocking=True)

    def _forward(self, shape: Shape) -> Stepped:
        part = shape.split(self._static)
        rows = Rows.of(
            self._layout,
            state_slots=part["slots"],
            ends=part["ends"],
            block_tables=part["tables"].view(shape.rows + 1, shape.pages),
            starts=(0,) * (shape.rows + 1),
            lens=(1,) * (shape.rows + 1),
        )
        inputs = Inputs(
            prefill_ids=part["ids"],
            positions=part["positions"],
            decode=None,
            prefill=rows,
            sample_index=part["sample_index"],
            sample_slots=part["sample_slots"],
            sample_positions=part["sample_positions"],
            live=part["positions"],
        )
        if shape.windowed:
            tables = part["window_tables"].view(shape.rows + 1, shape.pages)
            inputs.window_rows = None, rows.in_windows(self._layout, tables)
        inputs.once("plan", lambda: PrefillPlan.from_parts(part))
        ids, every_token = part["ids"], self._hidden is not None
        hidden = finished(
            self._model.forward(inputs, ids, self._cache, self._kernels, every_token=every_token)
        )
        if self._hidden is not None:
            self._hidden[: shape.tokens].copy_(hidden)
            hidden = hidden.index_select(0, part["sample_index"])
        logits = self._logits[: shape.rows]
        self._model.logits(hidden, logits.shape[1], self._kernels, logits)
        return logits, part["sample_slots"].long(), part["sample_positions"].long()


def sizes(max_tokens: int) -> tuple[int, ...]:
    """The tokens of the graphs for passes of up to ``max_tokens``."""
    return TOKENS[: bisect_left(TOKENS, max_tokens) + 1]


def _staged(shape: Shape) -> torch.Tensor:
    return torch.empty(shape.starts[-1], dtype=torch.int32, pin_memory=True)
