"""The draft layer's part of a decode step with drafts, as CUDA graphs (draft_graphs.py)."""

from collections.abc import Callable
from functools import partial

import torch

from engine.graphs.draft_memory import DraftMemory
from engine.graphs.graph_pool import Graph
from engine.inputs import Inputs
from engine.kernels.batch.triton_drafts import place_draft
from engine.kernels.dense.triton_linear import aligned_rows
from engine.kernels.interface import Kernels
from engine.model.model import Model
from engine.model.mtp import Chosen, draft_hidden, draft_kv
from engine.sampling.cuda_sampler import CudaSampler
from transport.copy.tensors import CacheTensors

Capture = Callable[[Callable[[], None]], Graph[None]]


class DraftLayer:
    """Makes drafts of up to ``num_rows`` sequences, with ids below ``num_ids``, from the states and
    tokens that a step's verification has left in ``memory``."""

    def __init__(
        self,
        model: Model,
        cache: CacheTensors,
        kernels: Kernels,
        sampler: CudaSampler,
        memory: DraftMemory,
        num_rows: int,
        num_ids: int,
    ) -> None:
        self._model, self._cache, self._kernels = model, cache, kernels
        self._sampler, self._memory = sampler, memory
        device = memory.hidden.device
        self._hidden = memory.hidden.new_zeros(num_rows, memory.hidden.shape[1])
        self._logits = aligned_rows(num_rows, num_ids, dtype=torch.float32, device=device)
        self.kv_graphs: dict[tuple[int, int], Graph[None]] = {}
        self.layer_graphs: dict[tuple[int, int], Graph[None]] = {}
        self.draft_graphs: dict[tuple[int, int], Graph[None]] = {}

    def capture(self, capture: Capture, bucket: int, num_drafts: int, *, drafts: bool) -> None:
        """Capture the graphs that follow the verification of this shape; ``drafts``: steps of this
        many sequences may make drafts."""
        shape = bucket, num_drafts
        self.kv_graphs[shape] = capture(partial(self.forward_kv, *shape))
        if drafts:
            self.layer_graphs[shape] = capture(partial(self.forward_layer, *shape))

    def capture_drafts(self, capture: Capture, bucket: int) -> None:
        for place in range(self._memory.tables.drafts.shape[0]):
            draft = partial(self.forward_draft, bucket, place)
            self.draft_graphs[bucket, place] = capture(draft)

    def make(self, bucket: int, num_drafts: int, num_next: int) -> None:
        """Enqueue the layer, and ``num_next`` drafts for the next step."""
        (self.layer_graphs if num_next else self.kv_graphs)[bucket, num_drafts].replay()
        for place in range(num_next):
            self.draft_graphs[bucket, place].replay()

    def forward_kv(self, bucket: int, num_drafts: int) -> None:
        """Compute only the layer's KV, if the next step has no drafts."""
        memory, size = self._memory, bucket * (num_drafts + 1)
        ids, hidden = memory.output.ids[:size], memory.hidden[:size]
        inputs = memory.output_inputs(size)
        draft_kv(self._model, ids, hidden, inputs, self._cache, self._kernels)

    def forward_layer(self, bucket: int, num_drafts: int) -> None:
        """Compute the layer at the last position of each row, and only its KV at the others."""
        memory, size = self._memory, bucket * (num_drafts + 1)
        last, chosen = memory.single.first(bucket), None
        place_draft(memory.rows(bucket), memory.tables, last, 0)
        if num_drafts:
            chosen = Chosen(memory.last[:bucket], memory.single_inputs(last))
        ids, inputs = memory.output.ids[:size], memory.output_inputs(size)
        self._hidden[:bucket].copy_(self._layer(ids, inputs, memory.hidden[:size], chosen))

    def forward_draft(self, bucket: int, place: int) -> None:
        """Make draft ``place`` of each row; this computes the layer too, except for the first."""
        memory, hidden = self._memory, self._hidden[:bucket]
        placed = memory.single.first(bucket)
        if place:
            place_draft(memory.rows(bucket), memory.tables, placed, place)
            hidden.copy_(self._layer(placed.ids, memory.single_inputs(placed), hidden))
        logits = self._logits[:bucket]
        self._model.logits(hidden, logits.shape[1], self._kernels, logits)
        self._sampler.guess_into(
            logits, placed.sample_slots, placed.sample_positions, memory.tables.drafts, place
        )

    def _layer(
        self, ids: torch.Tensor, inputs: Inputs, hidden: torch.Tensor, chosen: Chosen | None = None
    ) -> torch.Tensor:
        return draft_hidden(self._model, ids, hidden, inputs, self._cache, self._kernels, chosen)
