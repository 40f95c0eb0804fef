"""``python -m tests.engine.start_notes``: adds to
``engine/kernels/compiling/first_start.json`` what decode steps of the full-size model launch and no
start on a GPU has noted: with drafts and without, in BF16 and FP8, and as a member of a spread
group or a lender.

No GPU is needed, and nothing is computed: a model of four layers at full width, whose memory is
never written, notes each kernel's variant instead of launching it, as for a Hopper GPU. What
prompts launch depends on the device in other ways, so that is left to GPUs. With a
TRITON_CACHE_DIR that is empty, and TRITON_INTERPRET off.
"""

import json
import multiprocessing
import tempfile
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import jit

from engine.config import DECODE_BUCKETS, EngineConfig, Quantize
from engine.gpu_arch import MEASURED
from engine.graphs.decode_graphs import DecodeGraphs, Trunk
from engine.graphs.draft_graphs import DraftGraphs
from engine.kernels.compiling import first_start
from engine.kernels.compiling.notes import noted
from engine.kernels.triton_set import TritonKernels
from engine.loading import parts
from engine.loading.model_folder import read_model
from engine.model.registry import read_config
from engine.runner import Engine
from engine.sampling.cuda_sampler import CudaSampler
from engine.spread.group_memory import GroupMemory
from engine.spread.kernels import SpreadKernels
from engine.spread.lending import LendingSteps
from engine.spread.memory import exchange_layout
from engine.spread.shapes import draft_shapes, plain_shapes
from tests.engine import compiled_kernels
from tests.engine.compile_kernels import as_on, nothing_pinned
from tests.kernels.spread.spread_group import Memory

KINDS: dict[Quantize, tuple[first_start.Kind, first_start.Kind]] = {
    "none": ("bf16", "bf16-spread"),
    "fp8": ("fp8", "fp8-spread"),
}
"""What notes of weights are for: of all workers, and of those in spread groups only."""
NUM_LAYERS = 4
"""Three of DeltaNet, and one of attention."""
NUM_VALID_IDS = 248_077
"""Ids of the real checkpoint's tokenizer."""
MAX_DRAFTS, SLOTS, PAGES, GROUP = 3, 256, 4200, 2
BUCKETS = tuple(bucket for bucket in DECODE_BUCKETS if bucket <= SLOTS)
TARGET = GPUTarget("cuda", MEASURED, 32)
BACKEND = make_backend(TARGET)


class Notes:
    """Stands in for JITFunction.run. ``found``: each note, and whether only spread steps need
    it."""

    def __init__(self) -> None:
        self.found: dict[str, bool] = {}
        self.in_group = False
        self._seen = set[tuple[Any, ...]]()
        self._binders = compiled_kernels.Binders(BACKEND)

    def take(self, function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kwargs |= {"debug": False, "instrumentation_mode": ""}
        bound, variant, options = self._binders.bind(function, args, kwargs)
        key = function, str(variant), str(options)
        if key in self._seen:
            return
        self._seen.add(key)
        packed, signature, constants, attributes = function._pack_args(
            BACKEND, kwargs, bound, variant, options
        )
        data = jit.serialize_specialization_data(
            jit.get_full_name(function.fn), signature, constants, attributes, packed, "", TARGET
        )
        self.found.setdefault(noted(data), self.in_group)


def full_width(folder: Path, quantize: Quantize, max_drafts: int) -> Engine:
    """An engine with weights of no values."""
    config = json.loads(compiled_kernels.FULL_SIZE.read_text())
    text = config["text_config"]
    text |= {"num_hidden_layers": NUM_LAYERS, "layer_types": text["layer_types"][:NUM_LAYERS]}
    (folder / "config.json").write_text(json.dumps(config))
    settings = EngineConfig(
        folder, PAGES, SLOTS, load_format="dummy", dtype="bfloat16", quantize=quantize,
        num_valid_ids=NUM_VALID_IDS, max_drafts=max_drafts,
    )  # fmt: skip
    model = read_config(folder)
    model = model.quantised() if quantize == "fp8" else model
    kernels = TritonKernels(model, torch.device("cpu"), 2 * SLOTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "read_model", lambda own: read_model(replace(own, device="cuda")))
        patch.setattr(parts.weights, "draw", lambda *_: None)
        return Engine.load(
            settings, lambda size: torch.empty(size, dtype=torch.uint8), kernels=kernels
        )


@dataclass(frozen=True)
class Steps:
    """What decode steps are made of. ``member``: the kernels of a spread step."""

    trunk: Trunk
    sampler: CudaSampler
    logits: torch.Tensor
    member: SpreadKernels
    aborted: torch.Tensor

    def plain(self, *, in_group: bool) -> None:
        graphs = DecodeGraphs(self.trunk, self.sampler.next_token, self.logits, spreads=in_group)
        for bucket in BUCKETS:
            graphs._write_step(bucket, (), ())
            graphs._forward(bucket, self.trunk.kernels)
            if in_group:
                graphs._forward(bucket, self.member, spread=True)
                graphs.settle_spread(bucket, self.aborted)

    def with_drafts(self, *, in_group: bool) -> None:
        graphs = DraftGraphs(self.trunk, self.sampler, self.logits, MAX_DRAFTS, spreads=in_group)
        found = graphs._memory.verified.ids
        for bucket, num_drafts in graphs.shapes:
            graphs._write_step(bucket, (), [])
            graphs._forward(bucket, num_drafts, self.trunk.kernels)
            graphs._accept(bucket, num_drafts, found)
            graphs.layer.forward_kv(bucket, num_drafts)
            graphs.layer.forward_layer(bucket, num_drafts)
        for bucket, place in product(BUCKETS, range(MAX_DRAFTS)):
            graphs.layer.forward_draft(bucket, place)
        for bucket, num_drafts in draft_shapes(MAX_DRAFTS) if in_group else ():
            graphs._forward(bucket, num_drafts, self.member, num_stored=0)
            graphs._accept(bucket, num_drafts, found, self.aborted)


def launch_steps(engine: Engine, notes: Notes, max_drafts: int) -> None:
    """What graphs of decode steps capture; then what those of a group and of a lender do."""
    cpu = torch.device("cpu")
    longest = engine.model_config.max_position_embeddings
    trunk = Trunk(engine._model, engine.cache, engine.layout, engine._kernels, longest)
    sampler = CudaSampler(SLOTS, engine.num_ids, cpu, max_rows=2 * SLOTS, guesses=max_drafts > 0)
    group = GroupMemory(exchange_layout(engine.model_config), Memory(cpu), int, print)
    shapes = draft_shapes(max_drafts) if max_drafts else plain_shapes(BUCKETS)
    lending = LendingSteps(engine._model, group, shapes, limit_s=1.0)
    assert isinstance(engine._kernels, TritonKernels)
    member = SpreadKernels(engine._kernels, lending.exchange, GROUP)
    logits = torch.empty(2 * SLOTS, engine._num_logits)
    steps = Steps(trunk, sampler, logits, member, lending.exchange.header.clone()[:1])
    for notes.in_group in (False, True):
        (steps.with_drafts if max_drafts else steps.plain)(in_group=notes.in_group)
    for shape in shapes:
        lending._forward(GROUP, shape.num_tokens)


@torch.inference_mode()
def notes_of(quantize: Quantize, max_drafts: int) -> dict[str, bool]:
    """The notes of a start. Replaces much of torch and of the engine, and so needs a process of its
    own."""
    torch.set_num_threads(1)
    notes = Notes()
    jit.JITFunction.run = lambda self, *args, **named: notes.take(self, *args, **named)
    as_on(MEASURED)
    nothing_pinned()
    compiled_kernels.without_arithmetic()
    with tempfile.TemporaryDirectory() as folder:
        engine = full_width(Path(folder), quantize, max_drafts)
        compiled_kernels.as_on_a_gpu(engine)
        launch_steps(engine, notes, max_drafts)
    return notes.found


def missing(quantize: Quantize, max_drafts: int) -> list[str]:
    """The notes that are not in ``first_start.json``."""
    shipped = first_start.read(MEASURED, *KINDS[quantize])
    return [*notes_of(quantize, max_drafts).keys() - set(shipped)]


def main() -> None:
    wanted = first_start.kinds()
    before = {note: tuple(kinds) for note, kinds in wanted.items()}
    starts = [*product(KINDS, (0, MAX_DRAFTS))]
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        for (quantize, _), found in zip(
            starts, pool.starmap(notes_of, starts, chunksize=1), strict=True
        ):
            for note, in_group in found.items():
                kinds, (of_all, in_groups) = wanted.setdefault(note, []), KINDS[quantize]
                kind = in_groups if in_group and of_all not in kinds else of_all
                if kind not in kinds:
                    kinds.append(kind)
    print(f"{sum(before.get(note) != tuple(kinds) for note, kinds in wanted.items())} are new")
    first_start.save(wanted, MEASURED)


if __name__ == "__main__":
    main()
