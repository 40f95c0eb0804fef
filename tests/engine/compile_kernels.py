"""``python -m tests.engine.compile_kernels [--arch 90] [--model MODEL] [--one-each] [NAME...]``: do
the kernels compile for a GPU of this architecture (80: Ampere, 89: Ada, 90: Hopper, 100 and 120:
Blackwell)? With several, as in ``--arch 80,120``, each has a process of its own, and all share
their imports.

No GPU is needed: what prompts, decode steps, spread ones and those with drafts launch, in BF16 and
in FP8, with packed experts, behind deep contexts, and for other model families, is compiled to
machine code, with its shared memory printed, and launched nowhere. With NAMEs only kernels whose
names contain one; with a MODEL of tests/gpu/family_configs.py only what its prompts and decode
steps launch; with --one-each only the first variant of a kernel if that fits twice into shared
memory, and else one for each size of its tiles. All take some minutes, so tests run it for one
model (test_other_gpus.py). TRITON_INTERPRET must be off.
"""

import multiprocessing
import random
import sys
import tempfile
import time
from argparse import ArgumentParser
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import jit

from engine.batch import Binding, Pass
from engine.config import Quantize
from engine.download import WrittenByKernels
from engine.gpu_arch import MEASURED, has_fp8, shared_bytes
from engine.graphs.decode_graphs import DecodeGraphs, Trunk
from engine.graphs.draft_graphs import DraftGraphs
from engine.inputs import Inputs
from engine.kernels.attention.attention_pieces import LIBRARY
from engine.kernels.attention.int8_attention import INT8
from engine.kernels.attention.triton_attention_pieces import (
    DeepRows,
    attention_in_pieces,
)
from engine.kernels.attention.unmasked import Unmasked
from engine.kernels.batch.triton_prefill_plan import PrefillPlan
from engine.kernels.delta.triton_conv_linear import conv_linear
from engine.kernels.dense.triton_linear import float_linear, linear, linear_parts
from engine.kernels.experts.triton_experts_nvfp4 import FEW, UNPLANNED, experts_nvfp4
from engine.kernels.formats.triton_fp8 import widened_rows
from engine.kernels.formats.triton_nvfp4 import widened_experts
from engine.kernels.triton_set import TritonKernels
from engine.model.int4_experts import Int4Experts
from engine.model.int8_experts import Int8Experts
from engine.model.matrix import Matrix
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.model.packed_experts import RUN, PackedExperts
from engine.runner import Engine
from engine.sampling.cuda_sampler import CudaSampler
from engine.speculation import draft_prompts
from engine.spread.group_memory import GroupMemory
from engine.spread.kernels import SpreadKernels
from engine.spread.lending import LendingSteps
from engine.spread.memory import Exchange, ExchangeLayout, exchange_layout
from engine.spread.shapes import GROUP_SIZES, plain_shapes
from engine.spread.triton_collect import Collected
from engine.spread.triton_packed_experts import packed_experts
from tests.engine import compiled_kernels as noted
from tests.gpu.family_configs import NAMED, OTHERS
from tests.kernels.spread.spread_group import Memory
from transport.wire.sampling import StopRule
from transport.wire.spread import MAX_ROWS

QUANTIZE: tuple[Quantize, ...] = ("none", "fp8")
BUCKETS = (1, 8, 64)
MAX_DRAFTS, MAX_SEQ_LEN = 2, 4096
ROUNDS = "K", "SPLITS"
"""Constants of kernels that say how often a tile is computed, and nothing of its size."""


class Compiled:
    """Stands in for JITFunction.run."""

    def __init__(self, names: list[str], target: GPUTarget, *, one_each: bool) -> None:
        self._backend, self._target = make_backend(target), target
        self._names, self._one_each = names, one_each
        self._seen, self._small = set[str](), set[str]()
        self._binders = noted.Binders(self._backend)
        self.failed = list[str]()

    def launch(self, function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        name = function.fn.__name__
        if self._names and not any(each in name for each in self._names):
            return
        kwargs |= {"debug": False, "instrumentation_mode": ""}
        bound, variant, options = self._binders.bind(function, args, kwargs)
        key = f"{name} {variant} {options}"
        if key in self._seen or (self._one_each and name in self._small):
            return
        self._seen.add(key)
        options, signature, constants, attributes = function._pack_args(
            self._backend, kwargs, bound, variant, options
        )
        if self._one_each:
            named = ((function.arg_names[place], value) for (place, *_), value in constants.items())
            sizes = {key: value for key, value in named if key.isupper() and key not in ROUNDS}
            pointers = [kind for kind in signature.values() if kind.startswith("*")]
            tiles = f"{name} {sizes} {pointers} {options.num_warps} {options.num_stages}"
            if tiles in self._seen:
                return
            self._seen.add(tiles)
        of = GluonASTSource if function.is_gluon() else ASTSource
        source = of(function, signature, constants, attributes)
        began = time.perf_counter()
        try:
            kernel = triton.compile(source, target=self._target, options=options.__dict__)
        except Exception as error:  # whatever the compiler raises
            self.failed.append(name)
            print(f"FAILED {name} {constants}: {error}", flush=True)
            return
        took_s = time.perf_counter() - began
        shared = kernel.metadata.shared
        print(f"sm_{self._target.arch} {name}: {shared} B shared, {took_s:.1f} s", flush=True)
        if 2 * shared <= shared_bytes(self._target.arch):
            self._small.add(name)
        if shared > shared_bytes(self._target.arch):
            self.failed.append(name)
            print(f"FAILED {name} {constants}: too much shared memory", flush=True)


class PromptDrafts:
    """The draft layer's part of prompts, without decode steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def forget(self, state_slot: int) -> None: ...

    def prefilled(self, part: Pass, inputs: Inputs, hidden: torch.Tensor) -> None:
        engine = self._engine
        assert isinstance(engine._sampler, CudaSampler)
        draft_prompts(
            engine._model, engine.cache, engine._kernels, engine._sampler, part, inputs, hidden
        )

    def launch(self, rows: Any, num_next: int) -> Any:
        return [], NoTokens()


class NoTokens:
    def wait(self) -> None: ...

    def to_host(self) -> list[Any]:
        return []


def steps(engine: Engine) -> None:
    """What decode graphs capture, spread steps and steps with drafts too."""
    trunk = Trunk(engine._model, engine.cache, engine.layout, engine._kernels, MAX_SEQ_LEN)
    sampler = engine._sampler
    assert isinstance(sampler, CudaSampler)
    sampler.accept_drafts(0.8)
    logits = torch.zeros(BUCKETS[-1] * (MAX_DRAFTS + 1), engine._num_logits)
    plain = DecodeGraphs(trunk, sampler.next_token, logits)
    spread = DecodeGraphs(trunk, sampler.next_token, logits, spreads=True)
    drafts = DraftGraphs(trunk, sampler, logits, MAX_DRAFTS, spreads=True)
    layout = exchange_layout(engine.model_config)
    group = GroupMemory(layout, Memory(torch.device("cpu")), int, print)
    lending = LendingSteps(engine._model, group, plain_shapes(BUCKETS), limit_s=1.0)
    assert isinstance(engine._kernels, TritonKernels)
    for bucket in BUCKETS:
        plain._write_step(bucket, (), ())
        plain._forward(bucket, engine._kernels)
        spread._forward(bucket, engine._kernels)
        for size in GROUP_SIZES:
            kernels = SpreadKernels(engine._kernels, lending.exchange, size)
            spread._forward(bucket, kernels, spread=True)
            lending._forward(size, bucket)
        aborted = lending.exchange.header.clone()[:1]
        spread.settle_spread(bucket, aborted)
        for num_drafts in range(MAX_DRAFTS + 1):
            drafts._write_step(bucket, (), [])
            drafts._forward(bucket, num_drafts, engine._kernels)
            drafts._accept(bucket, num_drafts, drafts._memory.verified.ids)
            for size in GROUP_SIZES if bucket * (1 + num_drafts) <= MAX_ROWS else ():
                kernels = SpreadKernels(engine._kernels, lending.exchange, size)
                drafts._forward(bucket, num_drafts, kernels, num_stored=0)
            drafts._accept(bucket, num_drafts, drafts._memory.verified.ids, aborted)
            drafts.layer.forward_kv(bucket, num_drafts)
            drafts.layer.forward_layer(bucket, num_drafts)
        for place in range(MAX_DRAFTS):
            drafts.layer.forward_draft(bucket, place)


def launch_all(quantize: Quantize, *, in_pieces: bool) -> None:
    """What a small engine with such weights launches, with or without prompts in pieces."""
    with tempfile.TemporaryDirectory() as folder:
        engine = noted.small_engine(
            Path(folder), num_valid_ids=noted.NUM_VALID_IDS, max_drafts=MAX_DRAFTS,
            quantize=quantize,
        )  # fmt: skip
        noted.as_on_a_gpu(engine)
        engine._drafts = PromptDrafts(engine)
        with torch.inference_mode():
            if in_pieces:
                noted.plan_small_pieces(engine)
            engine.warm_up()
            for batch in noted.batches(engine, random.Random(0))[:20]:
                for row in batch.rows:
                    engine.bind(Binding(row.state_slot, (0,), (), noted.SAMPLING[1], StopRule(9)))
                    if row.start:
                        engine.restore(row.state_slot, row.state_slot, row.start)
                engine.launch(batch).result()
            steps(engine)


def launch_family(name: str) -> None:
    """What prompts and decode steps of another family launch, with its own heads."""
    with tempfile.TemporaryDirectory() as folder:
        engine = noted.family_engine(Path(folder), name)
        kernels = engine._kernels
        noted.as_on_a_gpu(engine)
        with torch.inference_mode():
            engine.warm_up()
            trunk = Trunk(engine._model, engine.cache, engine.layout, kernels, MAX_SEQ_LEN)
            assert isinstance(engine._sampler, CudaSampler)
            logits = torch.zeros(BUCKETS[-1], engine._num_logits)
            graphs = DecodeGraphs(trunk, engine._sampler.next_token, logits)
            for bucket in BUCKETS:
                graphs._write_step(bucket, (), ())
                graphs._forward(bucket, kernels)


def launch_packed(kind: type[PackedExperts]) -> None:
    """Experts in NVFP4 or integers, with and without a shared expert, and matrices of a model."""
    num_experts, top_k, hidden, dim = 32, 8, 2048, 512
    gate_up, down = (
        kind.empty(num_experts, runs, columns, torch.device("cpu"))
        for runs, columns in (((dim, dim), hidden), ((hidden,), dim))
    )
    w = torch.zeros(hidden, dim, dtype=torch.bfloat16)
    kinds = None, Matrix.of(w), Matrix.converted(w), packed(kind, hidden, 0, dim)
    for num_tokens, shared_down in product((1, FEW, UNPLANNED, 64, 512), kinds):
        x = torch.zeros(num_tokens, hidden, dtype=torch.bfloat16)
        ids = torch.zeros(num_tokens, top_k, dtype=torch.int32)
        shared = None if shared_down is None else (x[:, :dim].contiguous(), shared_down)
        experts_nvfp4(x, ids, torch.zeros(num_tokens, top_k), gate_up, down, shared)
    exchange = exchange_of(top_k, hidden)
    for rows_each, shared_down in product((1, 64), kinds):
        rows = Collected.empty(exchange, 2, rows_each, num_experts, torch.bfloat16)
        h = torch.zeros(rows_each, dim, dtype=torch.bfloat16)
        shared = None if shared_down is None else (h, shared_down)
        packed_experts(rows, gate_up, down, shared, exchange)
    widened_experts(gate_up, torch.bfloat16)
    shapes = (12288, 64, 2048), (2048, 0, 4096), (1024, 272, 2048)
    matrices = [packed(kind, *shape) for shape in shapes]
    for num_tokens, w in product((1, 16, 64, 65), matrices):
        x = torch.zeros(num_tokens, w.shape[1], dtype=torch.bfloat16)
        linear(x, w)
        linear_parts(x, w)
    lm_head = packed(kind, 1 << 17, 0, hidden)
    for num_tokens in (1, 16, 64):
        float_linear(torch.zeros(num_tokens, hidden, dtype=torch.bfloat16), lm_head, 100_000)
    taps = torch.zeros(8192, 4, dtype=torch.bfloat16)
    state = torch.zeros(2, 8192, 3, dtype=torch.bfloat16)
    for num_tokens in (1, 16):
        x = torch.zeros(num_tokens, 2048, dtype=torch.bfloat16)
        conv_linear(x, matrices[0], taps, state, torch.zeros(num_tokens, dtype=torch.int32))


def exchange_of(top_k: int, hidden: int) -> Exchange:
    """Memory of a group of no members."""
    layout, memory = ExchangeLayout(MAX_ROWS, top_k, hidden), Memory(torch.device("cpu"))
    return Exchange(layout, memory.allocate(layout.size_bytes).zero_())


def packed(kind: type[PackedExperts], num_rows: int, num_plain: int, columns: int) -> Matrix:
    """A matrix of rows in NVFP4 or integers with plain ones behind them."""
    runs = (RUN,) * (num_rows // RUN)
    rows = kind.empty(1, runs, columns, torch.device("cpu"))
    return Matrix.of_packed(rows, torch.zeros(num_plain, columns, dtype=torch.bfloat16))


def launch_fp8_lm_head() -> None:
    """Logits of a full-size ``lm_head`` in FP8."""
    hidden = 2048
    lm_head = Matrix.converted(torch.zeros(1 << 15, hidden, dtype=torch.bfloat16))
    for num_tokens in (1, 16, 64):
        float_linear(torch.zeros(num_tokens, hidden, dtype=torch.bfloat16), lm_head, 30_000)
    widened_rows(lm_head)


def launch_pieces() -> None:
    """Attention of a prompt behind a deep context, with a stand-in for cuDNN's part of it, and with
    int8."""
    heads, kv_heads, head_dim, page_size = 16, 2, 256, 64
    start, num_new = LIBRARY.deepest
    num_pages = -(-(start + num_new) // page_size)
    cpu, dtype = torch.device("cpu"), torch.bfloat16
    kv = torch.zeros(num_pages, 1, 2, page_size, kv_heads, head_dim, dtype=dtype)
    q = torch.zeros(num_new, heads, head_dim, dtype=dtype)
    tables = torch.zeros(1, num_pages, dtype=torch.int32)
    plan = PrefillPlan.of([start], [num_new], cpu)
    stand_in = Unmasked("", LIBRARY, lambda q, k, v: (q[None], q[None, ..., 0].float()))
    for unmasked in (stand_in, INT8):
        rows = DeepRows.of([start], [num_new], unmasked.cut, cpu)
        attention_in_pieces(q, q.flatten(1), kv, 0, tables, plan, rows, unmasked)


def launch_everything(arch: int) -> None:
    for quantize in QUANTIZE if has_fp8(arch) else ("none",):
        launch_all(quantize, in_pieces=arch == MEASURED)  # cuDNN's part is for Hopper only
    for name in (*NAMED, *OTHERS):
        launch_family(name)
    if has_fp8(arch):
        launch_packed(Nvfp4Experts)
        launch_packed(Int4Experts)
        launch_packed(Int8Experts)
        launch_fp8_lm_head()
    if arch == MEASURED:
        launch_pieces()


def nothing_pinned() -> None:
    """Have no memory pinned, as that takes a GPU."""
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[assignment,method-assign]
    WrittenByKernels.empty = lambda _, num: torch.zeros(num, dtype=torch.int64)  # type: ignore[method-assign]
    WrittenByKernels.keep = lambda *_: None  # type: ignore[assignment, method-assign, return-value]


def as_on(arch: int) -> None:
    """Have kernels launched as on a GPU of this architecture."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith(("engine.kernels.", "engine.spread.")) and hasattr(
            module, "arch_of"
        ):
            module.arch_of = lambda _: arch


def compile_for(arch: int, names: list[str], model: str | None, *, one_each: bool) -> None:
    """Compile for one architecture, and end the process: with status 1 if a kernel did not."""
    torch.set_num_threads(1)
    compiled = Compiled(names, GPUTarget("cuda", arch, 32), one_each=one_each)
    jit.JITFunction.run = lambda self, *args, **kwargs: compiled.launch(self, *args, **kwargs)
    noted.without_arithmetic()
    nothing_pinned()
    as_on(arch)
    if model is None:
        launch_everything(arch)
    else:
        launch_family(model)
    if compiled.failed:
        print(f"{len(compiled.failed)} kernels do not compile: {sorted(set(compiled.failed))}")
    sys.exit(bool(compiled.failed))


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--arch", default="90")
    parser.add_argument("--model", choices=(*NAMED, *OTHERS))
    parser.add_argument("--one-each", action="store_true")
    given = parser.parse_args()
    failed = False
    for each in given.arch.split(","):
        process = multiprocessing.get_context("fork").Process(
            target=compile_for,
            args=(int(each), given.names, given.model),
            kwargs={"one_each": given.one_each},
        )
        process.start()
        process.join()
        failed |= process.exitcode != 0
    sys.exit(failed)
