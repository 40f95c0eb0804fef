"""Decode steps with drafts as CUDA graphs (engine/speculation.py says what a step does).

A step is enqueued whole, and the host reads its outcome while the next one runs:

    verify graph (rows, drafts)     place the tokens, forward, logits;
    sampler                         the target's choices, by the settings of each sequence;
    accept                          equal drafts; lengths, pending and next tokens move on;
    layer graph (rows, drafts)      the draft layer at the last accepted position, KV at the others;
    draft graphs (rows, place)      the first draft's head, then each further draft;
    or KV graph (rows, drafts)      if the next step has no drafts.

The graphs behind ``accept`` are the draft layer's (draft_layer.py).

Only the GPU knows which positions a step writes: lengths are in tables there (triton_drafts.py). A
step that several workers compute together (engine/spread) has another verify graph; each worker
computes the draft layer for itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.batch import Pass, Row
from engine.cache.state_ring import StateRing
from engine.config import DECODE_BUCKETS, MAX_VERIFIED_TOKENS
from engine.download import Written, WrittenByKernels
from engine.graphs.decode_graphs import Trunk, buckets_below
from engine.graphs.draft_layer import DraftLayer
from engine.graphs.draft_memory import DraftMemory
from engine.graphs.graph_pool import Graph, GraphPool
from engine.inputs import DraftRows, Inputs
from engine.kernels.batch.triton_drafts import (
    SlotTables,
    Uncertain,
    accept,
    place_verified,
)
from engine.kernels.dense.triton_linear import aligned
from engine.kernels.interface import Kernels
from engine.model.model import finished
from engine.sampling.cuda_sampler import CudaSampler
from engine.sampling.target_choices import Choices, TargetChoices
from engine.sampling.verified import Verified
from engine.speculation import DRAFT_IDS, draft_prompts
from engine.spread.shapes import SpreadShape
from transport.wire.spread import MAX_ROWS

Outcomes = tuple[list[int], Verified]
"""The index of each token's row, and the tokens."""


@dataclass(frozen=True)
class Verifying:
    """A step up to the target's choices, by the verify graph of ``bucket`` rows with ``num_drafts``
    drafts each."""

    rows: Sequence[Row]
    bucket: int
    num_drafts: int
    choices: Choices


class DraftGraphs:
    """Drafts of every state slot on CUDA. ``launch``, ``forget`` and ``prefilled`` are as in
    ``engine.speculation.Speculation``. ``logits`` float32 [tokens, ids]: where steps leave theirs.
    ``spreads``: there may be steps that several workers compute together. ``buckets``: row counts
    of captured steps."""

    def __init__(
        self,
        trunk: Trunk,
        sampler: CudaSampler,
        logits: torch.Tensor,
        max_drafts: int,
        *,
        spreads: bool = False,
        buckets: Sequence[int] = DECODE_BUCKETS,
    ) -> None:
        self._model, self._cache, self._kernels = trunk.model, trunk.cache, trunk.kernels
        self._sampler, self.logits = sampler, logits
        self._device = device = sampler.next_token.device
        num_slots = sampler.next_token.shape[0]
        self.buckets = buckets_below(num_slots, buckets)
        most = self.buckets[-1]
        self.shapes = [
            (bucket, num_drafts)
            for bucket in self.buckets
            for num_drafts in range(max_drafts + 1)
            if not num_drafts or bucket * (num_drafts + 1) <= min(MAX_VERIFIED_TOKENS, len(logits))
        ]
        self._tables = tables = SlotTables(
            torch.zeros(num_slots, dtype=torch.int32, device=device),
            torch.zeros(num_slots, dtype=torch.int32, device=device),
            torch.zeros(max_drafts, num_slots, dtype=torch.int64, device=device),
            sampler.next_token,
        )
        self._rings = StateRing.allocate(
            trunk.layout, max_drafts + spreads, trunk.kernels.ring_shape(trunk.layout),
            trunk.cache.conv.dtype, tables.pending,
        )  # fmt: skip
        # The graph of a spread step may have more rows than there are state slots.
        num_rows = max(MAX_ROWS * spreads, most)
        num_tokens = max(MAX_ROWS * spreads, *(bucket * (num + 1) for bucket, num in self.shapes))
        shape = num_tokens, trunk.model.config.hidden_size
        hidden = torch.zeros(shape, dtype=trunk.cache.conv.dtype, device=device)
        self._memory = DraftMemory(
            trunk.layout,
            tables,
            trunk.max_seq_len,
            num_rows,
            hidden,
            trunk.shared_pages(num_tokens),
        )
        num_draft_ids = min(DRAFT_IDS, logits.shape[1])
        self.layer = DraftLayer(
            trunk.model, trunk.cache, trunk.kernels, sampler, self._memory, most, num_draft_ids
        )
        self._choices = TargetChoices(sampler, tables.drafts, self._memory.verified, logits)
        self._pool, self._written = GraphPool(trunk.divided), WrittenByKernels()
        self.verify_graphs: dict[tuple[int, int], Graph[None]] = {}
        self._verify_spread: dict[tuple[int, SpreadShape], Graph[None]] = {}
        self._made = [0] * num_slots
        self._fresh = [True] * num_slots

    @torch.inference_mode()
    def capture(self) -> None:
        """Compile every kernel and capture every shape, largest first, in one memory pool."""
        for bucket, num_drafts in sorted(self.shapes, key=lambda s: -s[0] * (s[1] + 1)):
            self._write_step(bucket, (), [])
            verify = partial(self._forward, bucket, num_drafts, self._kernels)
            self.verify_graphs[bucket, num_drafts] = self._capture(verify)
            # For no row. This also compiles the kernel between the graphs, which leaves rows of
            # this shape in ``last`` for the layer to read.
            self._accept(bucket, num_drafts, self._memory.verified.ids)
            drafts = (bucket, 1) in self.shapes
            self.layer.capture(self._capture, bucket, num_drafts, drafts=drafts)
        for bucket in reversed([b for b, num in self.shapes if num == 1]):
            self.layer.capture_drafts(self._capture, bucket)

    def _capture(self, forward: Callable[[], None]) -> Graph[None]:
        return _captured(self._pool, forward)

    @torch.inference_mode()
    def capture_spread(self, size: int, shapes: Sequence[SpreadShape], kernels: Kernels) -> None:
        """Capture the verify graphs of groups of up to ``size`` members, with a member's
        kernels."""
        aborted = torch.zeros(1, dtype=torch.int32, device=self._device)
        for shape in sorted(shapes, key=lambda each: -each.num_tokens):
            self._write_step(shape.bucket, (), [])
            forward = partial(self._forward, *shape, kernels, num_stored=0)
            self._verify_spread[size, shape] = self._capture(forward)
            # This also compiles the kernel behind the graph: a member that compiled it within a
            # step would be late.
            self._accept(1, shape.num_drafts, self._memory.verified.ids, aborted)

    def forget(self, state_slot: int) -> None:
        """Drop a slot's drafts, because the slot has a new owner."""
        self._memory.blocks.forget(state_slot)
        self._memory.shared.forget()
        self._made[state_slot] = 0
        self._fresh[state_slot] = True

    def prefilled(self, part: Pass, inputs: Inputs, hidden: torch.Tensor) -> None:
        """Write the draft layer's KV of a pass of prompts, as ``Speculation.prefilled``."""
        draft_prompts(self._model, self._cache, self._kernels, self._sampler, part, inputs, hidden)

    @torch.inference_mode()
    def launch(self, rows: Sequence[Row], num_next: int) -> Outcomes:
        """Enqueue one step."""
        bucket = self._bucket_of(rows)
        wanted = self._wanted(rows, max(num for b, num in self.shapes if b == bucket))
        num_drafts = max(wanted)
        self._write_step(bucket, rows, wanted)
        self._memory.shared.write(rows, num_drafts + 1)
        self.verify_graphs[bucket, num_drafts].replay()
        return self.settle(self._choose(rows, wanted, bucket, num_drafts), num_next)

    def launch_spread(self, size: int, shape: SpreadShape, rows: Sequence[Row]) -> Verifying | None:
        """Enqueue the verification of a step that all members launch with this shape, each with its
        own rows; None without rows. ``settle`` must follow."""
        wanted = self._wanted(rows, shape.num_drafts)
        self._write_step(shape.bucket, rows, wanted)
        self._memory.shared.write(rows, shape.num_drafts + 1)
        self._verify_spread[size, shape].replay()
        return self._choose(rows, wanted, *shape) if rows else None

    @torch.inference_mode()
    def settle(
        self, step: Verifying, num_next: int, aborted: torch.Tensor | None = None
    ) -> Outcomes:
        """Enqueue the rest of a step. ``aborted`` (int32 [1] on the device) is given for a spread
        step: unless it is 0, the sequences and their drafts stay as they were before the step."""
        rows, counts, num_drafts = step.rows, step.choices.counts, step.num_drafts
        bucket = self._bucket_of(rows)
        if aligned(bucket) != aligned(step.bucket):  # step.bucket is the largest member's
            self._write_step(bucket, rows, [count - 1 for count in counts])
        written = self._accept(bucket, num_drafts, step.choices.ids, aborted)
        num_out = self._memory.num_out[: len(rows)]
        verified = self._choices.accepted(step.choices, num_out, written)
        self._make(rows, bucket, num_drafts, num_next)
        owners = [i for i, count in enumerate(counts) for _ in range(count)]
        return owners, verified

    def num_made(self, rows: Sequence[Row]) -> dict[int, int]:
        """Number of drafts for the next step, by state slot."""
        return {row.state_slot: self._made[row.state_slot] for row in rows}

    def take_back(self, num_made: Mapping[int, int]) -> None:
        """Restore the numbers of drafts from before an aborted step."""
        for state_slot, num in num_made.items():
            self._made[state_slot] = num

    def _bucket_of(self, rows: Sequence[Row]) -> int:
        return next(b for b in self.buckets if b >= len(rows))

    def _wanted(self, rows: Sequence[Row], most: int) -> list[int]:
        return [min(row.num_drafts, self._made[row.state_slot], most) for row in rows]

    def _choose(
        self, rows: Sequence[Row], wanted: Sequence[int], bucket: int, num_drafts: int
    ) -> Verifying:
        choices = self._choices.choose(rows, [num + 1 for num in wanted], num_drafts + 1)
        return Verifying(rows, bucket, num_drafts, choices)

    def _accept(
        self,
        bucket: int,
        num_drafts: int,
        chosen: torch.Tensor,
        aborted: torch.Tensor | None = None,
    ) -> Written | None:
        """Enqueue the kernel that accepts drafts and advances the tables. Returns its ``num_out``
        on the host; None if all choices are output anyway (no drafts, and the step cannot
        abort)."""
        memory, on_host = self._memory, None
        uncertain = None if aborted is None else Uncertain(aborted, memory.verified.ids)
        if num_drafts or aborted is not None:
            on_host = self._written.empty(bucket)
        accept(
            memory.rows(bucket), chosen, memory.tables, memory.output, memory.last,
            memory.num_out, num_drafts + 1, uncertain, on_host,
        )  # fmt: skip
        return None if on_host is None else self._written.keep(on_host)

    def _make(self, rows: Sequence[Row], bucket: int, num_drafts: int, num_next: int) -> None:
        """Enqueue the draft layer and the next step's drafts."""
        if (bucket, 1) not in self.shapes:
            num_next = 0
        self.layer.make(bucket, num_drafts, num_next)
        self._choices.drafted(rows, num_next)
        for row in rows:
            self._made[row.state_slot] = num_next

    def _write_step(self, bucket: int, rows: Sequence[Row], wanted: Sequence[int]) -> None:
        starts = [row.start if self._fresh[row.state_slot] else -1 for row in rows]
        self._memory.write(bucket, rows, wanted, starts)
        for row in rows:
            self._fresh[row.state_slot] = False

    def _forward(
        self, bucket: int, num_drafts: int, kernels: Kernels, *, num_stored: int = 1
    ) -> None:
        memory, size = self._memory, bucket * (num_drafts + 1)
        step, placed = memory.rows(bucket), memory.verified.first(size)
        place_verified(step, memory.tables, placed, num_drafts + 1)
        inputs = memory.verified_inputs(size)
        inputs.drafts = DraftRows(
            step.slots, (num_drafts + 1,) * bucket, self._rings, num_stored=num_stored
        )
        hidden = finished(
            self._model.forward(inputs, placed.ids, self._cache, kernels, every_token=True)
        )
        memory.hidden[:size].copy_(hidden)
        logits = self.logits[:size]  # at most the tokens of the worker's own sequences
        self._model.logits(hidden[: len(logits)], logits.shape[1], self._kernels, logits)


def _captured(pool: GraphPool, forward: Callable[[], None]) -> Graph[None]:
    forward()
    return pool.capture(forward)
