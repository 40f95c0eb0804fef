"""Sampling on CUDA: the same choices as sampler.py, with the draw as one kernel.

Rows that only want greedy or plain temperature sampling go straight to the draw. Filters with a
top_k of at most SHORT_TOP_K cost two kernels more, longer ones four to seven; those, penalties,
bias and logprobs take temporaries of all ids, so passes with such rows are sampled in blocks. The
host never waits for the device here: the draw writes the chosen ids to pinned memory too, and an
event follows it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch
import torch.nn.functional as F

from engine.config import SAMPLED_AT_ONCE
from engine.download import WrittenByKernels
from engine.kernels.dense.triton_linear import aligned
from engine.kernels.sampling.torch_sampling import SHORT_TOP_K
from engine.kernels.sampling.triton_long_threshold import lowest_kept_of_all
from engine.kernels.sampling.triton_mask import mask_logits
from engine.kernels.sampling.triton_penalties import PenaltyTables, penalise
from engine.kernels.sampling.triton_sampling import SamplingWorkspace, draw
from engine.kernels.sampling.triton_threshold import ThresholdWorkspace, lowest_kept
from engine.sampling.fed_drafts import FedDrafts
from engine.sampling.given_acceptance import GivenAcceptance
from engine.sampling.grammars import Grammars
from engine.sampling.logprobs import draw_with_logprobs
from engine.sampling.pinned_draw import DrawInBlocks, PinnedDraw
from engine.sampling.sampler import Sampler
from engine.sampling.sampling_tables import Bound
from engine.step import Draw, SampleRow
from engine.upload import upload
from transport.wire.sampling import SamplingParams


def num_logits(num_ids: int, vocab_size: int) -> int:
    """Logits to compute for ``num_ids`` valid ids, so that the draw need not copy them."""
    return min(aligned(num_ids), vocab_size)


class CudaSampler(Sampler):
    """A Sampler whose tables and draws stay on one CUDA device. Logits may be wider than the valid
    ids (``num_logits``). Adjusted logits have the same layout, so the same kernels take them."""

    def __init__(
        self,
        num_state_slots: int,
        num_ids: int,
        device: torch.device,
        grammars: Grammars | None = None,
        *,
        max_rows: int = 0,
        guesses: bool = False,
    ) -> None:
        """``max_rows``: the most rows of one call, if they may be more than the state slots.
        ``guesses``: drafts are chosen too, in graphs, so the tables they read must exist."""
        super().__init__(
            num_state_slots, num_ids, device, width=aligned(num_ids), grammars=grammars
        )
        self._num_ids, self._width = num_ids, aligned(num_ids)
        max_rows = max(max_rows, num_state_slots)
        self._workspace, self._threshold_workspace = self._workspaces(max_rows)
        self._max_rows = max_rows
        self._written = WrittenByKernels()
        if guesses:
            self._penalty_tables()

    def _workspaces(self, max_rows: int) -> tuple[SamplingWorkspace, ThresholdWorkspace]:
        size = max_rows, self._num_ids, self._device
        return SamplingWorkspace.allocate(*size), ThresholdWorkspace.allocate(*size)

    @cached_property
    def _other_workspaces(self) -> tuple[SamplingWorkspace, ThresholdWorkspace]:
        """The working memory of calls on another stream."""
        return self._workspaces(self._max_rows)

    @contextmanager
    def on_another_stream(self) -> Iterator[None]:
        before = self._workspace, self._threshold_workspace
        self._workspace, self._threshold_workspace = self._other_workspaces
        try:
            yield
        finally:
            self._workspace, self._threshold_workspace = before

    @torch.inference_mode()
    def accept_drafts(self, probability: float) -> None:
        """Accept drafts as ``Sampler.accept_drafts`` says, and compile the kernel for it now: a
        worker that compiled it within a spread step would be late."""
        super().accept_drafts(probability)
        none = torch.full((1,), -1, device=self._device)
        drafts = torch.zeros(1, self._num_slots, dtype=torch.int64, device=self._device)
        given = GivenAcceptance(probability, drafts, none, self.tables.columns.seed)
        on_host = self._written.empty(1)
        given.decide(none.clone(), on_host, none.clone(), none.clone())
        self._written.keep(on_host)

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        rows: Sequence[SampleRow],
        drafts: FedDrafts | None = None,
        *,
        held: bool = False,
    ) -> Draw:
        num_rows = at_once = max(1, len(rows))
        if any(map(_takes_temporaries, rows, self.tables.bound_to(rows))):
            at_once = SAMPLED_AT_ONCE
        blocks = [slice(first, first + at_once) for first in range(0, num_rows, at_once)]
        parts = [
            self._sample(
                logits[b], slots[b], positions[b], rows[b], drafts and drafts.part(b), held=held
            )
            for b in blocks
        ]
        return parts[0] if len(parts) == 1 else DrawInBlocks.of(parts)

    def _sample(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        rows: Sequence[SampleRow],
        drafts: FedDrafts | None,
        *,
        held: bool,
    ) -> PinnedDraw:
        bounds, columns = self.tables.bound_to(rows), self.tables.columns
        settings = [bound.sampling for bound in bounds]
        # Logits past the last valid id do not count.
        if logits.shape[1] < self._width:
            logits = F.pad(logits, (0, self._width - logits.shape[1]))
        adjusted, lowest = logits, None
        wants_logprobs = any(params.logprobs is not None for params in settings)
        if masks := self._masks(rows, drafts):
            adjusted = logits.clone() if wants_logprobs else logits
            mask_logits(adjusted, masks.rows, masks.bits.to(self._device, non_blocking=True))
        is_adjusted = masks is not None or any(
            bound.adjusts(row.position) for row, bound in zip(rows, bounds, strict=True)
        )
        if is_adjusted:
            adjusted = self.adjusted(adjusted, slots, positions, rows, drafts)
        # Adjusted logits may be -inf, which the draw takes for an error unless filters are on.
        if is_adjusted or any(map(_is_filtered, settings)):
            lowest = self._lowest(adjusted, slots, settings)
        on_host = self._written.empty(len(rows))
        ids = draw(
            adjusted,
            self._num_ids,
            columns.temperature,
            columns.seed,
            slots,
            positions,
            self._workspace,
            next_token=self.next_token,
            lowest=lowest,
            on_host=on_host,
        )
        if (given := self._given_acceptance(rows, drafts, masks)) is not None:
            given.decide(ids, on_host, slots, positions)
        drawn = Draw(ids)
        if wants_logprobs:
            valid = logits[:, : self._num_ids]
            drawn = draw_with_logprobs(valid, ids.clamp(min=0), ids, settings)
        errors = {} if masks is None else masks.errors
        copied = PinnedDraw.of(replace(drawn, errors=errors), on_host)
        self._written.keep(on_host, copied.copied)
        if drafts is None and not held:
            self._record(rows, slots, ids, 1, copied)
        return copied

    def guess_into(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        drafts: torch.Tensor,
        place: int,
    ) -> None:
        """Write the ``guess`` of draft ``place`` into ``drafts`` int64 [drafts, state slots], in a
        graph; slots of -1 have no guess. Changes the logits."""
        columns = self.tables.columns
        penalise(logits, self._penalty_tables(), slots, drafts[:place], in_place=True)
        draw(
            logits,
            min(logits.shape[1], self._num_ids),
            columns.temperature,
            columns.seed,
            slots,
            positions,
            self._workspace,
            next_token=drafts[place],
        )

    def _penalised(
        self, logits: torch.Tensor, slots: torch.Tensor, drafts: FedDrafts | None
    ) -> torch.Tensor:
        if drafts is None:
            return penalise(logits, self._penalty_tables(), slots)
        return penalise(logits, self._penalty_tables(), slots, drafts.ids, drafts.num_before())

    def _penalty_tables(self) -> PenaltyTables:
        """The penalty tables, made on first use."""
        tables = self.tables
        return PenaltyTables(
            tables.columns.penalties, tables.in_prompt.made(), tables.counts.made()
        )

    def _lowest(
        self, logits: torch.Tensor, slots: torch.Tensor, settings: Sequence[SamplingParams]
    ) -> torch.Tensor:
        """The smallest logit / temperature that each row's filters keep, float32 [rows]."""
        columns = self.tables.columns
        filtered = [row for row, params in enumerate(settings) if _is_filtered(params)]
        long = [row for row in filtered if _is_long(settings[row])]
        given = (
            logits,
            self._num_ids,
            columns.temperature,
            columns.top_k,
            columns.top_p,
            columns.min_p,
            slots,
        )
        if len(long) < len(filtered):
            lowest = lowest_kept(*given, self._threshold_workspace)
        else:
            lowest = torch.full((len(settings),), float("-inf"), device=self._device)
        if long:
            index = upload(torch.tensor(long), self._device)
            any_top_k = any(settings[row].top_k > 0 for row in long)
            lowest_kept_of_all(*given, index, lowest, any_top_k=any_top_k)
        return lowest


def _is_filtered(params: SamplingParams) -> bool:
    """True if a filter may drop ids. False for greedy rows: the best id is never dropped."""
    return params.has_filters and params.temperature != 0.0


def _is_long(params: SamplingParams) -> bool:
    """True if a filter may keep more than the best SHORT_TOP_K ids."""
    return not 0 < params.top_k <= SHORT_TOP_K


def _takes_temporaries(row: SampleRow, bound: Bound) -> bool:
    """True if sampling the row takes memory for each id, beyond its logits."""
    params = bound.sampling
    if params.logprobs is not None or bound.adjusts(row.position):
        return True
    return _is_filtered(params) and _is_long(params)
