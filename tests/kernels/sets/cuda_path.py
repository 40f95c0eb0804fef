"""An engine that does all that it does on CUDA, on a CPU: kernels in Triton's interpreter, graphs
that compute again what they captured, and pinned memory, streams and events that do nothing.

It finds what tests of single kernels cannot: memory that two graphs share, an index past the rows
of a shape, a table that was not written.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import gpu
from engine.config import EngineConfig
from engine.cuda_parts import CudaParts
from engine.graphs import draft_graphs
from engine.graphs.graph_pool import GraphPool
from engine.kernels.attention import triton_attention_decode, triton_rope_cache
from engine.kernels.delta import triton_conv_linear
from engine.kernels.dense import triton_large_linear, triton_linear
from engine.kernels.dense.triton_rows import Tiles
from engine.kernels.formats.triton_fp8 import BLOCK_K as FP8_K
from engine.kernels.formats.triton_quantise import BLOCK, Quantised
from engine.kernels.triton_set import TritonKernels
from engine.loading.parts import read_model
from engine.model.matrix import Matrix
from engine.model.packed_experts import RUN
from engine.runner import Engine
from transport.wire.spread import MAX_ROWS

FULL_SIZE = Path(__file__).parents[3] / "bench/models/qwen3.5-35b-a3b/config.json"
SMALL = {
    "hidden_size": 256, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128, "vocab_size": 544, "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2, "num_key_value_heads": 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip


def fp8_product(x: Quantised, w: Matrix, out: torch.Tensor) -> None:
    """As cuBLAS, in PyTorch."""
    scales = x.scales.repeat_interleave(BLOCK, 1)
    out.copy_((x.q.float() * scales) @ w.first(w.num_fp8).dequantised().t())


class Event:
    def __init__(self, **_: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Graph:
    """``replay`` computes, and leaves the results in the memory of the first time. A capture, which
    comes behind the same computation, computes nothing."""

    def __init__(self, forward: Callable[[], Any]) -> None:
        self._forward = forward
        self._results: Any = None

    def replay(self) -> Any:
        found = self._forward()
        if self._results is None:
            self._results = found
        for kept, new in zip(self._results or (), found or (), strict=True):
            if kept.data_ptr() != new.data_ptr():
                kept.copy_(new)
        return self._results


def capture(_: Any, forward: Callable[[], Any]) -> Graph:
    return Graph(forward)


def on_the_cpu(patch: pytest.MonkeyPatch) -> None:
    """Let what is made for CUDA be made here."""
    patch.setattr(triton_large_linear, "_fp8_product", fp8_product)
    patch.setattr(GraphPool, "capture", capture)
    patch.setattr(draft_graphs, "_captured", lambda pool, forward: pool.capture(forward))
    patch.setattr(gpu, "free_bytes", lambda: 0)
    patch.setattr(gpu, "graphs_plan", lambda *_: "")
    without_pinned_memory(patch)
    few_programs(patch)


def without_pinned_memory(patch: pytest.MonkeyPatch) -> None:
    """Let copies to the host be made at once, to plain memory."""
    patch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor.clone())
    patch.setattr(torch.cuda, "Event", Event)
    empty = torch.empty

    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return empty(*args, **kwargs)

    patch.setattr(torch, "empty", unpinned)


def few_programs(patch: pytest.MonkeyPatch) -> None:
    """Compute attention with less programs than fill a GPU, each of which does more: an interpreted
    one takes time even where it finds nothing to do."""
    patch.setattr(triton_attention_decode, "SHARED_PROGRAMS", 4)
    patch.setattr(triton_attention_decode, "programs_for", lambda *_: 2)
    patch.setattr(triton_rope_cache, "MAX_ALONE", 2)


def widen_tiles(patch: pytest.MonkeyPatch) -> None:
    """The interpreter's time is that of programs and their rounds: few of both in linear layers."""

    def tiles_of(num_tokens: int, w: Matrix, splits: int, *_: bool) -> Tiles:
        rows = RUN if w.packed is not None else FP8_K.value if w.num_fp8 else 256
        k = w.shape[1] // splits
        return Tiles(rows, min(512, k & -k), 2, 4, True)  # a power of two that divides it

    for kernels in (triton_linear, triton_conv_linear):
        patch.setattr(kernels, "tiles_of", tiles_of)


def write_config(folder: Path, **sizes: int) -> None:
    config = json.loads(FULL_SIZE.read_text())
    config["text_config"] |= SMALL | sizes
    (folder / "config.json").write_text(json.dumps(config))


def load(settings: EngineConfig) -> Engine:
    """An engine on the CPU with the parts that one has on CUDA."""
    max_drafts, num_slots = settings.max_drafts, settings.num_state_slots
    assert num_slots is not None
    device = torch.device("cpu")
    max_rows = max(num_slots * (1 + max_drafts), MAX_ROWS * settings.spread)
    model, _ = read_model(settings)
    kernels = TritonKernels(model, device, max_rows)
    engine = Engine.load(settings, lambda n: torch.zeros(n, dtype=torch.uint8), kernels=kernels)
    parts = CudaParts(
        replace(settings, device="cuda"), engine._model, engine.cache, engine.layout, kernels,
        engine.num_ids, engine.max_drafts, None,
    )  # fmt: skip
    engine._num_logits, engine._sampler = parts.num_logits, parts.sampler
    if settings.draft_acceptance is not None:
        parts.sampler.accept_drafts(settings.draft_acceptance)
    engine._graphs, engine._drafts = parts.decode_graphs(), parts.draft_graphs()
    engine.spread, engine.lending = parts.spread(engine._graphs, engine._drafts), parts.lending()
    return engine
