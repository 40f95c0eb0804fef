"""The parts of an engine that exist on CUDA only: its sampler, and graphs of its passes."""

import logging
import time
from collections.abc import Callable
from functools import cached_property, partial

import torch

from engine import gpu
from engine.config import EngineConfig, step_tokens
from engine.divided_gpu import CannotDivide, DividedGpu
from engine.gpu_arch import arch_number, unmeasured
from engine.graphs.decode_graphs import DecodeGraphs, Trunk
from engine.graphs.draft_graphs import DraftGraphs
from engine.graphs.prefill_graphs import MAX_PROMPTS, PrefillGraphs
from engine.graphs.prefill_graphs import sizes as prompt_sizes
from engine.kernels.dense.triton_linear import aligned_rows
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.shared_memory import most_shared_memory
from engine.kernels.triton_set import TritonKernels
from engine.model.model import Model
from engine.overlap import Overlap
from engine.sampling.cuda_sampler import CudaSampler, num_logits
from engine.sampling.grammars import Grammars
from engine.spread.engine_steps import EngineSpread
from engine.spread.group_memory import GroupMemory
from engine.spread.interface import Lending, Spreading
from engine.spread.lending import LendingSteps
from engine.spread.member_steps import DraftSteps, MemberSteps, PlainSteps
from engine.spread.memory import exchange_layout
from engine.spread.shapes import draft_shapes, plain_shapes
from engine.spread.steps import SpreadSteps
from transport.copy.memory import own_memory
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout
from transport.wire.spread import MAX_ROWS

log = logging.getLogger(__name__)

SPREAD_WAIT_S = 0.05
"""How long a GPU waits for another GPU within a spread step: longer than for its prompts
(worker/launches.py)."""


class CudaParts:
    """Makes each part once. Graphs are None if the kernels cannot be captured."""

    def __init__(
        self,
        config: EngineConfig,
        model: Model,
        cache: CacheTensors,
        layout: CacheLayout,
        kernels: Kernels,
        num_ids: int,
        max_drafts: int,
        grammars: Grammars | None,
    ) -> None:
        self._config, self._model, self._cache = config, model, cache
        self._layout, self._kernels, self._max_drafts = layout, kernels, max_drafts
        self._captures = not isinstance(kernels, ReferenceKernels)
        self._device = cache.conv.device
        self._divided = self._divide() if config.overlap != "off" else None
        self._trunk = Trunk(
            model, cache, layout, kernels, model.config.max_position_embeddings, self._divided
        )
        # Slots without states hold kept prefixes too, one for each page (transport/wire/layout.py).
        num_kept = 0 if layout.has_states else cache.kv.shape[0]
        self._num_slots = cache.conv.shape[0] - num_kept
        self._step_tokens = step_tokens(self._num_slots, max_drafts)
        self.num_logits = num_logits(num_ids, model.config.vocab_size)
        self.sampler = CudaSampler(
            self._num_slots, num_ids, self._device, grammars, max_rows=self._step_tokens,
            guesses=config.decodes and max_drafts > 0,
        )  # fmt: skip

    def overlap(self) -> Overlap | None:
        """Prompts beside decode steps, if the settings ask for them and the GPU can be divided."""
        return None if self._divided is None else Overlap(self._divided)

    def _divide(self) -> DividedGpu | None:
        config, problem = self._config, ""
        if not self._captures:
            problem = "its kernels have no graphs"
        elif not (config.decodes and config.prefills):
            problem = "this worker does not both compute prompts and decode"
        elif config.spreads:
            problem = "steps of a spread group need the whole GPU"
        elif config.overlap == "auto" and unmeasured(
            arch_number(torch.cuda.get_device_capability())
        ):
            problem = "it was measured with compute capability 9.0 alone"
        elif config.gpu_share > 1:
            problem = "other workers compute on this GPU"
        elif self._model.config.quantization.packs:
            problem = "it was not measured with weights in NVFP4, int4 or int8"
        try:
            if problem:
                raise CannotDivide(problem)
            divided = DividedGpu.of(torch.cuda.current_device())
        except CannotDivide as error:
            if config.overlap == "on":
                raise ValueError(f"overlap: on, but {error}") from None
            log.info("overlap: prompts are computed between decode steps: %s", error)
            return None
        log.info(
            "overlap: long prompts are computed beside decode steps on %s of %d multiprocessors",
            " or ".join(str(each.num_for_steps) for each in divided.divisions),
            divided.total,
        )  # fmt: skip
        return divided

    def decode_graphs(self) -> DecodeGraphs | None:
        """Graphs of decode steps without a draft layer."""
        if not self._captures or not self._config.decodes or self._max_drafts:
            return None
        graphs = DecodeGraphs(
            self._trunk, self.sampler.next_token, self._logits,
            spreads=self._config.spreads, buckets=self._config.decode_buckets,
        )  # fmt: skip
        with most_shared_memory():
            _capture(graphs.capture, f"{len(graphs.buckets)} decode graphs")
        return graphs

    def spread(self, graphs: DecodeGraphs | None, drafts: DraftGraphs | None) -> Spreading | None:
        """Graphs of spread steps, if the settings ask for them. ``graphs``: the decode steps
        without a draft layer; ``drafts``: the decode steps with one."""
        member: MemberSteps
        if drafts is not None:
            shapes = draft_shapes(self._max_drafts, self._num_slots)
            member = DraftSteps(drafts, shapes)
        elif graphs is not None:
            member = PlainSteps(graphs, self.sampler)
            shapes = plain_shapes(b for b in graphs.buckets if b in self._spread_buckets)
        else:
            return None
        if not self._config.spreads:
            return None
        assert isinstance(self._kernels, TritonKernels), "graphs are of its kernels"
        num_layers = len(self._model.config.layers)
        steps = SpreadSteps(
            member, self._kernels, self._group, num_layers, shapes, limit_s=SPREAD_WAIT_S
        )  # fmt: skip
        with most_shared_memory():
            _capture(partial(steps.capture, self._config.group_sizes), "graphs of spread steps")
        return EngineSpread(steps)

    def lending(self) -> Lending | None:
        """Graphs of a lender's part of others' steps, if the settings ask for them."""
        if not self._captures or not self._config.lends:
            return None
        shapes = plain_shapes(self._spread_buckets)
        if self._max_drafts:
            shapes = draft_shapes(self._max_drafts)
        steps = LendingSteps(self._model, self._group, shapes, limit_s=SPREAD_WAIT_S)
        with most_shared_memory():
            _capture(
                partial(steps.capture, self._config.group_sizes), "graphs of steps that it lends to"
            )
        return steps

    @cached_property
    def _group(self) -> GroupMemory:
        """The exchange memory: one, since a worker decodes in its group or lends to it."""
        from transport.copy.cuda import close_handle, open_handle  # needs cupy, as own_memory does

        opens = partial(open_handle, peer="a member of the spread group")
        memory = own_memory("cuda", "spread")
        most = max(self._config.group_sizes)
        return GroupMemory(exchange_layout(self._model.config), memory, opens, close_handle, most)

    @property
    def _spread_buckets(self) -> tuple[int, ...]:
        """Buckets of spread steps: the same for workers with more and with fewer state slots, so
        that all can be members of one group."""
        return tuple(bucket for bucket in self._config.decode_buckets if bucket <= MAX_ROWS)

    def draft_graphs(self) -> DraftGraphs | None:
        """Graphs of decode steps with drafts."""
        if not self._captures or not self._config.decodes or not self._max_drafts:
            return None
        graphs = DraftGraphs(
            self._trunk, self.sampler, self._logits, self._max_drafts,
            spreads=self._config.spreads, buckets=self._config.decode_buckets,
        )  # fmt: skip
        with most_shared_memory():
            _capture(graphs.capture, f"graphs of {len(graphs.shapes)} decode steps")
        return graphs

    def plan_pieces(self) -> None:
        """Make cuDNN's plans for prompts behind deep contexts, or compile the kernels for them. An
        engine of any role may compute such prompts, so all do it, in the thread that launches
        passes: torch keeps plans for each thread."""
        if isinstance(self._kernels, TritonKernels) and not self._kernels.pieces_problem:
            began = time.monotonic()
            self._kernels.plan_pieces(self._cache.kv)
            took_s = time.monotonic() - began
            if not self._kernels.pieces_problem:
                log.info("attention to deep contexts was prepared in %.2f s", took_s)

    def prefill_graphs(self) -> PrefillGraphs | None:
        """Graphs of short prefill passes, if this engine prefills."""
        if not (self._captures and self._config.prefills):
            return None
        hidden, most = None, self._config.max_prompt_tokens
        if self._max_drafts:
            shape = prompt_sizes(most)[-1], self._model.config.hidden_size
            hidden = torch.empty(shape, dtype=self._config.torch_dtype, device=self._device)
        graphs = PrefillGraphs(
            self._model, self._cache, self._layout, self._kernels, self._logits, most, hidden
        )
        _capture(graphs.capture, f"{len(graphs.shapes)} prefill graphs")
        return graphs

    @cached_property
    def _logits(self) -> torch.Tensor:
        """The memory in which all graphs leave their logits: they run one after another on one
        stream, and each pass is sampled before the next one begins."""
        num_rows = self._step_tokens * self._config.decodes
        shape = max(num_rows, MAX_PROMPTS * self._config.prefills), self.num_logits
        return aligned_rows(*shape, dtype=torch.float32, device=self._device)


def _capture(capture: Callable[[], None], what: str) -> None:
    before = gpu.free_bytes()
    capture()
    log.info("memory: %s", gpu.graphs_plan(before, what))
