"""``python -m tests.engine.compiled_kernels KIND...``: which kernels do batches need that were not
warm, with weights in none, fp8 or nvfp4, or for a model of tests/gpu/family_configs.py?

Prints one line for each. Each KIND has a process of its own, and all share their imports. Nothing
is computed: instead of being launched, a kernel's variant (what Triton would compile for) is noted,
on the CPU, as for a Hopper GPU. TRITON_INTERPRET must be off.
"""

import json
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import AutoConfig
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import jit

from engine.batch import Binding, ForwardBatch, Keep, Row, Scoring
from engine.config import Device, EngineConfig, Overlap, Quantize
from engine.kernels.attention import attention_pieces
from engine.kernels.attention.unmasked import Unmasked
from engine.kernels.triton_set import TritonKernels
from engine.loading import parts
from engine.loading.model_folder import read_model
from engine.model.registry import read_config
from engine.runner import Engine
from engine.sampling import cuda_sampler
from engine.sampling.cuda_sampler import CudaSampler, num_logits
from tests.gpu.family_configs import NAMED, OTHERS, four_layers
from tests.kernels.sets.cuda_path import without_pinned_memory
from transport.wire.sampling import SamplingParams, StopRule

FULL_SIZE = Path(__file__).parents[2] / "bench/models/qwen3.5-35b-a3b/config.json"
SMALLER = {
    "hidden_size": 512, "num_experts": 16, "vocab_size": 65_552, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 1,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8,
}  # fmt: skip
SMALLER_FAMILY = {
    "hidden_size": 512, "intermediate_size": 1024, "num_experts": 16, "vocab_size": 65_552,
}  # fmt: skip
NUM_VALID_IDS = 65_541
NUM_BATCHES = 60
PAGES = 160
SAMPLING = (SamplingParams(temperature=1.0), SamplingParams(top_k=40, top_p=0.8, min_p=0.1))
ADJUSTED: tuple[dict[str, Any], ...] = (
    {}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"repetition_penalty": 1.2},
    {"logit_bias": {3: 1.0}}, {"min_tokens": 5},
)  # fmt: skip
FILTERED: tuple[dict[str, Any], ...] = (
    {}, {"top_k": 20, "top_p": 0.95}, {"top_p": 0.95}, {"logprobs": 2}
)  # fmt: skip
BACKEND = make_backend(GPUTarget("cuda", 90, 32))


class Binders:
    """Makes of a launch what Triton would compile."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._made: dict[Any, Any] = {}

    def bind(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """The arguments by name, the variant, and the options of a launch of ``function``."""
        if function not in self._made:
            self._made[function] = jit.create_function_from_signature(
                function.signature, function.params, self._backend
            )
        arguments, variant, options = self._made[function](*args, **kwargs)
        return arguments, variant, options


class Variants:
    """Stands in for JITFunction.run."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._binders = Binders(BACKEND)

    def note(self, function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        arguments, variant, options = self._binders.bind(function, args, kwargs)
        named = [f"{name}={each}" for name, each in zip(arguments, variant, strict=True)]
        self.seen.add(f"{function.fn.__name__} {' '.join(named)} {options}")


def small_engine(
    folder: Path,
    device: Device = "cpu",
    *,
    num_valid_ids: int | None = None,
    max_drafts: int = 0,
    quantize: Quantize = "none",
    overlap: Overlap = "off",
) -> Engine:
    """The real head sizes, pages and top-k, so the real choice of kernels; little else."""
    config = json.loads(FULL_SIZE.read_text())
    text = config["text_config"]
    text |= SMALLER | {"layer_types": text["layer_types"][: SMALLER["num_hidden_layers"]]}
    (folder / "config.json").write_text(json.dumps(config))
    settings = EngineConfig(
        folder, PAGES, 64, load_format="dummy", dtype="bfloat16", device=device,
        num_valid_ids=num_valid_ids, max_drafts=max_drafts, quantize=quantize,
        overlap=overlap,
    )  # fmt: skip
    model = read_config(folder)
    model = model.quantised() if quantize == "fp8" else model
    model = model.rounded() if quantize == "nvfp4" else model
    with pytest.MonkeyPatch.context() as patch:
        # Experts in NVFP4 stay so on GPUs only.
        patch.setattr(parts, "read_model", lambda own: read_model(replace(own, device="cuda")))
        return Engine.load(
            settings,
            lambda size: torch.zeros(size, dtype=torch.uint8, device=device),
            kernels=TritonKernels(model, torch.device(device), 64 * (1 + max_drafts)),
        )


def family_engine(folder: Path, name: str) -> Engine:
    """A model of tests/gpu/family_configs.py with its own heads, and little else."""
    config = AutoConfig.for_model(**four_layers(name)).to_dict()
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    config |= {key: value for key, value in SMALLER_FAMILY.items() if key in config}
    (folder / "config.json").write_text(json.dumps(config | {"head_dim": head_dim}))
    settings = EngineConfig(folder, PAGES, 64, load_format="dummy", dtype="bfloat16")
    kernels = TritonKernels(read_config(folder), torch.device("cpu"), 64)
    return Engine.load(settings, lambda n: torch.zeros(n, dtype=torch.uint8), kernels=kernels)


def batches(engine: Engine, draw: random.Random) -> list[ForwardBatch]:
    """Prompts, whole or continued, few and many, short and long, some of which keep a state; then
    many short ones together, and some that are scored."""
    found = []
    for _ in range(NUM_BATCHES):
        rows, pages = [], list(range(PAGES))
        for slot in range(draw.choice((1, 1, 2, 3, 4, 5, 8, 15, 16, 24))):
            start = draw.choice((0, 0, 64, 128, 77, 1024))
            length = draw.choice((1, 7, 64, 100, 256, 300, draw.randint(1, 1100)))
            num_pages = engine.layout.pages_for(start + length)
            if len(pages) < num_pages:
                break
            held, pages = pages[:num_pages], pages[num_pages:]
            sample = bool((start + length) % 64) or draw.random() < 0.5
            keep = Keep(length, slot + 32) if draw.random() < 0.3 else None
            rows.append(Row(slot, tuple(held), start, (0,) * length, sample=sample, keep=keep))
        found.append(ForwardBatch(tuple(rows)))
    for num_rows in (17, 24, 33, 40, 60):
        short = [Row(slot, (slot,), 0, (0,) * draw.choice((3, 9, 20))) for slot in range(num_rows)]
        found.append(ForwardBatch(tuple(short)))
    for length in (2, 20, 50, 130):
        scoring = Scoring(0, (0,) * (length - 1), 1)
        found.append(ForwardBatch((Row(0, (0, 1, 2), 0, (0,) * length, scoring=scoring),)))
    return found


def deep_batches(engine: Engine) -> list[ForwardBatch]:
    """Prompts that are computed in pieces, one or several, with tails and without."""
    found = []
    for shape in ([(1024, 192)], [(1024, 200)], [(1000, 170), (777, 100)], [(512, 64)] * 3):
        rows, first = [], 0
        for slot, (start, length) in enumerate(shape):
            pages = range(first, first + engine.layout.pages_for(start + length))
            rows.append(Row(slot, tuple(pages), start, (0,) * length, sample=True))
            first = pages.stop
        found.append(ForwardBatch(tuple(rows)))
    return found


def plan_small_pieces(engine: Engine) -> None:
    """Have a CPU engine compute prompts in pieces, but short ones, without cuDNN; and plan them, as
    an engine on CUDA does first in its warm-up."""
    attention_pieces.PIECE_LENS = 512, 256, 128
    attention_pieces.CHUNK_LENS = 128, 64
    attention_pieces.LONGEST_TAIL = 40
    cut = replace(
        attention_pieces.LIBRARY, least_cached=128, least_new=64, least_pairs=10_000,
        deepest=(896, 193),
    )  # fmt: skip

    def attend(q: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return q[None], q.new_zeros(1, *q.shape[:2], dtype=torch.float32)

    assert isinstance(engine._kernels, TritonKernels)
    engine._kernels.unmasked, engine._kernels.pieces_problem = Unmasked("", cut, attend), ""
    engine._kernels.plan_pieces(engine.cache.kv)


def asked() -> Iterator[tuple[SamplingParams, StopRule]]:
    """What requests ask of sampling, one thing that changes logits at a time."""
    greedy = {"temperature": 0.0}
    for adjusted, other in product(ADJUSTED, (greedy, *FILTERED)):
        params = {**adjusted, **other}
        stop = StopRule(9, min_tokens=params.pop("min_tokens", 0), stop_token_ids=(7,))
        yield SamplingParams(**params), stop


def first_tokens(num_prompts: int) -> tuple[ForwardBatch, ForwardBatch]:
    """Prompts, and the step after it of the first one alone."""
    prompts = tuple(Row(slot, (slot,), 0, (0,)) for slot in range(num_prompts))
    return ForwardBatch(prompts), ForwardBatch((Row(0, (0,), 1, None),))


def as_on_a_gpu(engine: Engine) -> None:
    """Have a CPU engine sample as on a GPU, but to plain memory."""
    engine._num_logits = num_logits(engine.num_ids, engine.model_config.vocab_size)
    engine._scored_block = None
    engine._sampler = CudaSampler(64, engine.num_ids, torch.device("cpu"))
    draw = cuda_sampler.draw

    def drawn(*args: Any, on_host: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        """What the kernels would have written."""
        if on_host is not None:
            on_host.zero_()
        return draw(*args, on_host=on_host, **kwargs).zero_()

    cuda_sampler.draw = drawn
    without_pinned_memory(pytest.MonkeyPatch())


def without_arithmetic() -> None:
    """Let torch's own products and random weights take no time."""
    torch.nn.functional.linear = lambda x, w: x.new_empty(len(x), len(w))  # type: ignore[assignment]
    torch.mm = lambda *_, out, **__: out.zero_()  # type: ignore[assignment]
    torch.addmm = lambda into, x, w: into.clone()  # type: ignore[assignment]
    torch.ops.aten._scaled_mm_v2 = SimpleNamespace(out=lambda *_, out, **__: out.zero_())
    torch.Tensor.normal_ = lambda weight, *_, **__: weight.zero_()  # type: ignore[assignment]


def main(kind: str) -> None:
    torch.set_num_threads(1)
    variants = Variants()
    jit.JITFunction.run = lambda self, *args, **kwargs: variants.note(self, *args, **kwargs)
    without_arithmetic()
    with tempfile.TemporaryDirectory() as folder:
        if is_family := kind in (*NAMED, *OTHERS):
            engine = family_engine(Path(folder), kind)
        else:
            quantize = cast(Quantize, kind)
            engine = small_engine(Path(folder), num_valid_ids=NUM_VALID_IDS, quantize=quantize)
        as_on_a_gpu(engine)
        if not is_family:
            plan_small_pieces(engine)
        engine.warm_up()
        warm = set(variants.seen)
        prompts = [*deep_batches(engine), *batches(engine, random.Random(0))]
        for index, batch in enumerate(prompts):
            for row in batch.rows:
                sampling = SAMPLING[(index + row.state_slot) % 2 if index % 3 else 0]
                engine.bind(Binding(row.state_slot, (0,), (), sampling, StopRule(9)))
                if row.start:
                    engine.restore(row.state_slot, row.state_slot, row.start)
            engine.launch(batch).result()
        for sampling, stop in asked():
            engine.bind(Binding(0, (0,), (), sampling, stop))
            for batch in first_tokens(9):
                engine.launch(batch).result()
    for cold in sorted(variants.seen - warm):
        print(f"{kind}: {cold}")
    pieces = any("_rest_kernel" in each for each in warm)
    assert pieces != is_family, "pieces are for the full-size model"


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        process = multiprocessing.get_context("fork").Process(target=main, args=(kind,))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{kind}: exit code {process.exitcode}")
