"""Sampling on CUDA: the same choices as sampler.py, with the draw as one kernel.

Rows that only want greedy or plain temperature sampling go straight to the draw. Filters with a
top_k of at most SHORT_TOP_K cost two kernels more; longer ones, penalties, bias and logprobs use
the tables and take temporaries of all ids, so passes with such rows are sampled in blocks. The
host never waits for the device here: the draw writes the chosen ids to pinned memory too, and an
event follows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from engine.batch import Sampled
from engine.config import SAMPLED_AT_ONCE
from engine.download import WrittenByKernels, download
from engine.fed_drafts import FedDrafts
from engine.grammars import Grammars
from engine.kernels import torch_sampling
from engine.kernels.triton_linear import aligned
from engine.kernels.triton_mask import mask_logits
from engine.kernels.triton_penalties import PenaltyTables, penalise
from engine.kernels.triton_sampling import SamplingWorkspace, draw
from engine.kernels.triton_threshold import ThresholdWorkspace, lowest_kept
from engine.sampler import (
    FREQUENCY,
    MIN_P,
    REPETITION,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Bound,
    Sampler,
)
from engine.step import Draw, SampleRow
from engine.upload import upload
from transport.wire.sampling import SamplingParams


def num_logits(num_ids: int, vocab_size: int) -> int:
    """Logits to compute for ``num_ids`` valid ids, so that the draw need not copy them."""
    return min(aligned(num_ids), vocab_size)


@dataclass(frozen=True)
class PinnedDraw(Draw):
    """A draw on its way to the host; ``on_device`` are its ids there."""

    copied: torch.cuda.Event | None = None
    on_device: torch.Tensor | None = None

    @property
    def device_ids(self) -> torch.Tensor:
        assert self.on_device is not None, "a draw that was not copied"
        return self.on_device

    def wait(self) -> None:
        assert self.copied is not None, "a draw that was not copied"
        self.copied.synchronize()

    def to_host(self) -> list[Sampled]:
        self.wait()
        return super().to_host()


@dataclass(frozen=True)
class DrawInBlocks(Draw):
    """Draws of one pass, each of some of its rows; ``ids`` are all of them, on the device."""

    parts: tuple[PinnedDraw, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[PinnedDraw]) -> "DrawInBlocks":
        return cls(torch.cat([part.device_ids for part in parts]), parts=tuple(parts))

    @property
    def host_ids(self) -> torch.Tensor:
        return torch.cat([part.host_ids for part in self.parts])

    def wait(self) -> None:
        self.parts[-1].wait()

    def to_host(self) -> list[Sampled]:
        return [sampled for part in self.parts for sampled in part.to_host()]


class CudaSampler(Sampler):
    """A Sampler whose tables and draws stay on one CUDA device. Logits may be wider than the
    valid ids (``num_logits``); adjusted ones are laid out alike, and meet the same kernels."""

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
        """``max_rows``: of one call, where they may be more than the state slots. ``guesses``:
        drafts are chosen too, in graphs, whose tables are to exist."""
        super().__init__(
            num_state_slots, num_ids, device, width=aligned(num_ids), grammars=grammars
        )
        max_rows = max(max_rows, num_state_slots)
        self._workspace = SamplingWorkspace.allocate(max_rows, num_ids, device)
        self._threshold_workspace = ThresholdWorkspace.allocate(max_rows, num_ids, device)
        self._written = WrittenByKernels()
        if guesses:
            self._penalty_tables()

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
        if any(_takes_temporaries(row, self._bound[row.state_slot]) for row in rows):
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
        bindings = [self._bound[row.state_slot] for row in rows]
        settings = [binding.sampling for binding in bindings]
        # What lies past the last valid id does not count.
        if logits.shape[1] < self._width:
            logits = F.pad(logits, (0, self._width - logits.shape[1]))
        adjusted, lowest = logits, None
        wants_logprobs = any(params.logprobs is not None for params in settings)
        if masks := self._masks(rows, drafts):
            adjusted = logits.clone() if wants_logprobs else logits
            mask_logits(adjusted, masks.rows, masks.bits.to(self._device, non_blocking=True))
        is_adjusted = masks is not None or any(map(_is_adjusted, rows, bindings))
        if is_adjusted:
            adjusted = self._adjusted(adjusted, slots, positions, rows, bindings, drafts)
        # Adjusted logits may be -inf, which the draw takes for an error where nothing is filtered.
        if is_adjusted or any(map(_is_filtered, settings)):
            lowest = self._lowest(adjusted, slots, settings)
        on_host = _for_ids(len(rows))
        ids = draw(
            adjusted,
            self._num_ids,
            self._floats[:, TEMPERATURE],
            self._ints[:, SEED],
            slots,
            positions,
            self._workspace,
            next_token=self.next_token,
            lowest=lowest,
            on_host=on_host,
        )
        drawn = Draw(ids)
        if wants_logprobs:
            valid = logits[:, : self._num_ids]
            drawn = self._with_logprobs(valid, ids.clamp(min=0), ids, settings)
        errors = {} if masks is None else masks.errors
        copied = _copied(replace(drawn, errors=errors), on_host)
        self._keep(copied)
        if drafts is None and not held:
            self._put_out(rows, slots, ids, 1, copied)
        return copied

    def _keep(self, draw: PinnedDraw) -> None:
        """The ids are written by a kernel."""
        self._written.keep(draw.ids, draw.copied)

    def guess_into(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        drafts: torch.Tensor,
        place: int,
    ) -> None:
        """``guess`` of draft ``place`` into int64 [drafts, state slots] ``drafts``, in a graph;
        slots of -1 have none. Changes the logits."""
        penalise(logits, self._tables(), slots, drafts[:place], in_place=True)
        draw(
            logits,
            min(logits.shape[1], self._num_ids),
            self._floats[:, TEMPERATURE],
            self._ints[:, SEED],
            slots,
            positions,
            self._workspace,
            next_token=drafts[place],
        )

    def _penalised(
        self, logits: torch.Tensor, slots: torch.Tensor, drafts: FedDrafts | None
    ) -> torch.Tensor:
        if drafts is None:
            return penalise(logits, self._tables(), slots)
        return penalise(logits, self._tables(), slots, drafts.ids, drafts.num_before())

    def _tables(self) -> PenaltyTables:
        penalties = self._floats[:, REPETITION : FREQUENCY + 1]
        return PenaltyTables(penalties, *self._penalty_tables())

    def _lowest(
        self, logits: torch.Tensor, slots: torch.Tensor, settings: Sequence[SamplingParams]
    ) -> torch.Tensor:
        """The smallest logit / temperature that each row's filters keep, float32 [rows]."""
        filtered = [row for row, params in enumerate(settings) if _is_filtered(params)]
        long = [row for row in filtered if _is_long(settings[row])]
        if len(long) < len(filtered):
            lowest = lowest_kept(
                logits,
                self._num_ids,
                self._floats[:, TEMPERATURE],
                self._ints[:, TOP_K],
                self._floats[:, TOP_P],
                self._floats[:, MIN_P],
                slots,
                self._threshold_workspace,
            )
        else:
            lowest = torch.full((len(settings),), float("-inf"), device=self._device)
        if long:
            index = upload(torch.tensor(long), self._device)
            kept = self._lowest_of_all(logits.index_select(0, index), slots.index_select(0, index))
            lowest.index_copy_(0, index, kept)
        return lowest

    def _lowest_of_all(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """The same for rows whose filters need all ids in order."""
        floats, integers = self._floats.index_select(0, slots), self._ints.index_select(0, slots)
        scaled = logits[:, : self._num_ids] / floats[:, TEMPERATURE].unsqueeze(1)
        return torch_sampling.threshold(
            scaled, integers[:, TOP_K], floats[:, TOP_P], floats[:, MIN_P], short=False
        )


def _is_adjusted(row: SampleRow, binding: Bound) -> bool:
    """Whether the row's logits change before they are divided by its temperature."""
    params = binding.sampling
    early = binding.stop.min_tokens > max(0, row.position - binding.num_prompt)
    return params.has_penalties or bool(params.logit_bias) or early


def _is_filtered(params: SamplingParams) -> bool:
    """Whether a filter may drop ids. False for greedy rows: the best id is never dropped."""
    return params.has_filters and params.temperature != 0.0


def _is_long(params: SamplingParams) -> bool:
    """Whether a filter needs all ids in order."""
    return not 0 < params.top_k <= torch_sampling.SHORT_TOP_K


def _takes_temporaries(row: SampleRow, binding: Bound) -> bool:
    """Whether sampling the row takes memory for each id, beyond its logits."""
    params = binding.sampling
    if params.logprobs is not None or _is_adjusted(row, binding):
        return True
    return _is_filtered(params) and _is_long(params)


def _for_ids(num_rows: int) -> torch.Tensor:
    return torch.empty(num_rows, dtype=torch.int64, pin_memory=True)


def _copied(drawn: Draw, on_host: torch.Tensor) -> PinnedDraw:
    """Start copying a draw, whose ids are written to ``on_host``, ordered behind it."""
    copies, copied = download(*(drawn.logprobs or ()))
    logprobs = (copies[0], copies[1], copies[2]) if copies else None
    return PinnedDraw(on_host, drawn.logprob_rows, logprobs, drawn.errors, copied, drawn.ids)
