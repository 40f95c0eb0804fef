"""The target's choices for the tokens of a step with drafts, on CUDA.

The host launches everything without knowing the drafts. It needs drafts only for the mask of a
constrained sequence: they are copied when they are made, and waited for after the next step's
forward pass has been launched.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.batch import Row
from engine.download import Written, download
from engine.kernels.batch.triton_drafts import Placed
from engine.kernels.dense.triton_linear import aligned_rows
from engine.sampling.cuda_sampler import CudaSampler
from engine.sampling.fed_drafts import FedDrafts
from engine.sampling.verified import Verified, VerifiedOnGpu
from engine.step import Draw, SampleRow
from engine.upload import upload


@dataclass(frozen=True)
class Choices:
    """The target's choices. ``draw`` has one token for each of ``rows``, whose state slots are
    ``slots`` int64 on the device; ``counts``: rows of each sequence. ``ids`` int64 [tokens], on the
    device, has all tokens of the step, -1 for tokens without a choice."""

    draw: Draw
    rows: Sequence[SampleRow]
    slots: torch.Tensor
    counts: Sequence[int]
    ids: torch.Tensor


@dataclass(frozen=True)
class CopiedDrafts:
    """One sequence's drafts, on their way to the host until ``copied`` has passed."""

    ids: torch.Tensor
    copied: torch.cuda.Event


class TargetChoices:
    """Samples the target's choices. ``drafts`` int64 [drafts, state slots]: the fed drafts;
    ``placed``: their positions; ``logits`` float32 [tokens, ids]: the forward pass's result."""

    def __init__(
        self, sampler: CudaSampler, drafts: torch.Tensor, placed: Placed, logits: torch.Tensor
    ) -> None:
        self._sampler, self._drafts, self._placed = sampler, drafts, placed
        self._logits, self._device = logits, logits.device
        self._ids = torch.zeros_like(placed.ids)
        # The same memory in each step: torch would keep a block for each number of rows.
        self._chosen = aligned_rows(*logits.shape, dtype=torch.float32, device=self._device)
        self._on_host: dict[int, CopiedDrafts] = {}

    def choose(self, rows: Sequence[Row], counts: Sequence[int], tokens_each: int) -> Choices:
        """Enqueue the choices for the first ``counts`` tokens of each row's ``tokens_each``."""
        size = len(rows) * tokens_each
        sample_rows = [
            SampleRow(row.state_slot, row.start + 1 + place, place)
            for row, count in zip(rows, counts, strict=True)
            for place in range(count)
        ]
        logits, slots = self._logits[:size], self._placed.sample_slots[:size]
        positions, index = self._placed.sample_positions[:size], None
        if len(sample_rows) < size:
            tokens = [i * tokens_each + j for i, count in enumerate(counts) for j in range(count)]
            index = upload(torch.tensor(tokens), self._device)
            logits = torch.index_select(logits, 0, index, out=self._chosen[: len(tokens)])
            slots, positions = slots.index_select(0, index), positions.index_select(0, index)
        fed = FedDrafts.of_runs(self._drafts, counts, self._drafts_of)
        draw = self._sampler.sample(logits, slots, positions, sample_rows, fed)
        ids = draw.device_ids
        if index is not None:
            ids = self._ids[:size].fill_(-1).index_copy_(0, index, ids)
        return Choices(draw, sample_rows, slots, counts, ids)

    def accepted(
        self, choices: Choices, num_out: torch.Tensor, written: Written | None
    ) -> Verified:
        """The result for the host: the first ``num_out`` int64 [rows] choices of each row are
        output. The host reads ``num_out`` in ``written``; None: all are output."""
        draw, counts = choices.draw, choices.counts
        if written is None:
            verified = Verified(draw, counts, torch.ones(len(counts), dtype=torch.int64))
        else:
            verified = VerifiedOnGpu(draw, counts, written.values[: len(counts)], written.event)
        ids = draw.device_ids
        self._sampler.note_output(choices.rows, choices.slots, ids, num_out, verified)
        return verified

    def drafted(self, rows: Sequence[Row], num_drafts: int) -> None:
        """Note that ``num_drafts`` drafts for each row's next step were enqueued. All drafts in the
        table are copied: those from before an aborted step are still there, and may be more."""
        slots = [row.state_slot for row in rows if self._sampler.is_constrained(row.state_slot)]
        if not (slots and num_drafts):
            return
        index = upload(torch.tensor(slots), self._device)
        (on_host,), copied = download(self._drafts.index_select(1, index).t())
        for slot, ids in zip(slots, on_host, strict=True):
            self._on_host[slot] = CopiedDrafts(ids, copied)

    def _drafts_of(self, slot: int) -> Sequence[int]:
        drafts = self._on_host[slot]
        drafts.copied.synchronize()
        ids: list[int] = drafts.ids.tolist()
        return ids
