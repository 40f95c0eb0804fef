"""Sampling on CUDA: the same choices as sampler.py, with the draw as one kernel.

Rows that only want greedy or plain temperature sampling go straight to the draw; a batch with
penalties, bias, filters or logprobs takes the tables' way to it. Nothing waits for the device:
what was chosen is copied to pinned memory behind an event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from engine.batch import Binding, Sampled
from engine.kernels import torch_sampling
from engine.kernels.triton_sampling import SamplingWorkspace, draw
from engine.sampler import MIN_P, SEED, TEMPERATURE, TOP_K, TOP_P, Draw, Sampler, SampleRow
from engine.upload import upload
from transport.sampling import SamplingParams

ALIGNED_IDS = 4


def num_logits(num_ids: int, vocab_size: int) -> int:
    """Logits to compute for ``num_ids`` valid ids, so that the draw need not copy them."""
    return min(-(-num_ids // ALIGNED_IDS) * ALIGNED_IDS, vocab_size)


@dataclass(frozen=True)
class PinnedDraw(Draw):
    """A draw on its way to the host."""

    copied: torch.cuda.Event | None = None

    def wait(self) -> None:
        assert self.copied is not None, "a draw that was not copied"
        self.copied.synchronize()

    def to_host(self) -> list[Sampled]:
        self.wait()
        return super().to_host()


class CudaSampler(Sampler):
    """A Sampler whose tables and draws stay on one CUDA device. Logits may be wider than the
    valid ids (``num_logits``)."""

    def __init__(self, num_state_slots: int, num_ids: int, device: torch.device) -> None:
        super().__init__(num_state_slots, num_ids, device)
        self._workspace = SamplingWorkspace.allocate(num_state_slots, num_ids, device)

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        rows: Sequence[SampleRow],
    ) -> Draw:
        bindings = [self._bound[row.state_slot] for row in rows]
        settings = [binding.sampling for binding in bindings]
        valid = logits[:, : self._num_ids]
        adjusted, lowest = logits, None
        if not all(map(_is_plain, rows, bindings)):
            adjusted = self._adjusted(valid.float(), slots, positions, rows, bindings)
            lowest = self._lowest(adjusted, slots, settings)
        # The draw reads ids four at a time; what lies past the last valid one does not count.
        if adjusted.shape[1] % ALIGNED_IDS:
            adjusted = F.pad(adjusted, (0, -adjusted.shape[1] % ALIGNED_IDS))
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
        )
        if any(params.has_penalties for params in settings):
            assert self._counts is not None
            self._counts[slots, ids.clamp(min=0)] += 1
        if all(params.logprobs is None for params in settings):
            return _copied(Draw(ids))
        return _copied(self._with_logprobs(valid.float(), ids.clamp(min=0), ids, settings))

    def _lowest(
        self, logits: torch.Tensor, slots: torch.Tensor, settings: Sequence[SamplingParams]
    ) -> torch.Tensor:
        """The smallest logit / temperature that each row's filters keep, float32 [rows]."""
        floats, integers = self._floats.index_select(0, slots), self._ints.index_select(0, slots)
        lowest = torch.full((len(settings),), float("-inf"), device=self._device)
        filtered = [row for row, params in enumerate(settings) if params.has_filters]
        if filtered:
            index = upload(torch.tensor(filtered), self._device)
            temperature = floats[index, TEMPERATURE]
            scaled = logits.index_select(0, index) / torch.where(
                temperature == 0.0, 1.0, temperature
            ).unsqueeze(1)
            short = all(0 < settings[r].top_k <= torch_sampling.SHORT_TOP_K for r in filtered)
            kept = torch_sampling.threshold(
                scaled,
                integers[index, TOP_K],
                floats[index, TOP_P],
                floats[index, MIN_P],
                short=short,
            )
            lowest.index_copy_(0, index, kept)
        return lowest


def _is_plain(row: SampleRow, binding: Binding) -> bool:
    """Whether the draw alone does all that the row asks for."""
    params = binding.sampling
    early = binding.stop.min_tokens > max(0, row.position - len(binding.prompt_ids))
    return not (params.has_penalties or params.logit_bias or early or params.has_filters)


def _copied(drawn: Draw) -> PinnedDraw:
    """Start copying a draw to the host, ordered behind it."""

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    logprobs = drawn.logprobs
    if logprobs is not None:
        logprobs = (pinned(logprobs[0]), pinned(logprobs[1]), pinned(logprobs[2]))
    moved = replace(drawn, ids=pinned(drawn.ids), logprobs=logprobs)
    event = torch.cuda.Event()
    event.record()
    return PinnedDraw(moved.ids, moved.logprob_rows, moved.logprobs, event)
