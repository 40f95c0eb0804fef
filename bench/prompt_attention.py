"""``python -m bench.prompt_attention``: attention of prompts behind deep contexts, with and without
pieces.

Of each shape: one layer's attention with today's kernel and in pieces (engine/kernels/
attention_pieces.py), in ms and TFLOP/s, and how much the two differ. With ``--model`` whole passes
of an engine with random weights as well.
"""

import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench.engine_bench import FULL_SIZE, load
from bench.recording import Recording
from engine.batch import Binding, ForwardBatch, Row
from engine.kernels import cudnn_attention
from engine.kernels.attention_pieces import DEEPEST_PLANNED
from engine.kernels.triton_attention_pieces import DeepRows, attention_in_pieces
from engine.kernels.triton_attention_prefill import attention_prefill
from engine.kernels.triton_prefill_plan import PrefillPlan
from engine.kernels.triton_set import TritonKernels
from engine.runner import Engine
from transport.wire.sampling import SamplingParams, StopRule

HEADS, KV_HEADS, DIM, PAGE, LAYERS = 16, 2, 256, 64, 2
SHAPES = (
    (57_600, 6_400), (57_664, 2_048), (57_344, 2_048), (57_344, 1_024), (16_384, 8_192),
    (8_192, 8_192), (8_192, 2_048), (8_192, 1_024), (131_072, 4_096),
)  # fmt: skip
PASSES = (57_600, 6_400), (57_344, 8_192), (16_384, 8_192), (57_344, 2_048), (0, 8_192)
ROUNDS, TOLERANCE = 5, 8e-3


def flops(start: int, num_new: int) -> float:
    """Floating-point operations of one layer's attention."""
    pairs = num_new * start + num_new * (num_new + 1) // 2
    return float(4 * HEADS * DIM * pairs)


def timed_ms(run: Any) -> float:
    run()
    found = list[float]()
    for _ in range(ROUNDS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        ended.synchronize()
        found.append(began.elapsed_time(ended))
    return statistics.median(found)


def layer(start: int, num_new: int) -> dict[str, Any]:
    """One layer of this shape."""
    device, num_pages = torch.device("cuda"), -(-(start + num_new) // PAGE)
    kv = torch.randn(num_pages, LAYERS, 2, PAGE, KV_HEADS, DIM, device=device).bfloat16()
    tables = torch.randperm(num_pages, device=device).int()[None]
    q = torch.randn(num_new, HEADS, DIM, device=device).bfloat16()
    gate = torch.randn(num_new, HEADS * DIM, device=device).bfloat16()
    plan = PrefillPlan.of([start], [num_new], device)
    of, rows = (q, gate, kv, 1, tables, plan), DeepRows.of([start], [num_new], device)
    began = time.perf_counter()
    pieces = attention_in_pieces(*of, rows, cudnn_attention.attend)
    torch.cuda.synchronize()
    first_ms = 1e3 * (time.perf_counter() - began)
    whole = attention_prefill(*of)
    error = ((pieces.float() - whole.float()).norm() / whole.float().norm()).item()
    whole_ms = timed_ms(lambda: attention_prefill(*of))
    pieces_ms = timed_ms(lambda: attention_in_pieces(*of, rows, cudnn_attention.attend))
    tflop = flops(start, num_new) / 1e12
    return {
        "start": start, "new": num_new, "whole_ms": round(whole_ms, 3),
        "pieces_ms": round(pieces_ms, 3), "whole_tflops": round(1e3 * tflop / whole_ms),
        "pieces_tflops": round(1e3 * tflop / pieces_ms), "difference": round(error, 5),
        "first_ms": round(first_ms),
    }  # fmt: skip


def passes(model: Path, quantize: str) -> tuple[float, list[dict[str, Any]]]:
    """Seconds to make cuDNN's plans again, and ms of whole passes of an engine."""
    most = max(start + num_new for start, num_new in PASSES)
    engine = load(model, most // PAGE + 2, 2, quantize, decodes=False)
    kernels, found = engine._kernels, []
    assert isinstance(kernels, TritonKernels)
    began = time.perf_counter()
    kernels.plan_pieces(engine.cache.kv)
    torch.cuda.synchronize()
    planned_s, problem = time.perf_counter() - began, kernels.cudnn_problem
    graphs = engine._prefill_graphs
    for start, num_new in PASSES:
        each: dict[str, Any] = {"start": start, "new": num_new}
        for name, why, captured in (
            ("whole_ms", "off", graphs), ("pieces_ms", problem, graphs), ("free_ms", problem, None),
        ):  # fmt: skip
            kernels.cudnn_problem, engine._prefill_graphs = why, captured
            each[name] = round(1e3 * _pass_s(engine, start, num_new), 1)
        found.append(each)
    return round(planned_s, 3), found


def _pass_s(engine: Engine, start: int, num_new: int) -> float:
    times, ids = [], tuple(range(1, num_new + 1))
    pages = tuple(range(engine.layout.pages_for(start + num_new)))
    for _ in range(ROUNDS):
        engine.bind(Binding(0, ids, (), SamplingParams(temperature=1.0), StopRule(8)))
        if start:
            engine.restore(0, 0, start)
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.launch(ForwardBatch((Row(0, pages, start, ids, sample=True),))).result()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder or config.")] = FULL_SIZE,
    quantize: Annotated[str, typer.Option(help="none, or fp8.")] = "none",
    whole_passes: Annotated[bool, typer.Option(help="Time whole passes too.")] = True,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("prompt-attention.json"),
) -> None:
    if problem := cudnn_attention.unsupported(torch.bfloat16, DIM):
        raise SystemExit(f"error: {problem}")
    run = Recording("bench.prompt_attention", out, {"quantize": quantize, "rounds": ROUNDS})
    layer(*DEEPEST_PLANNED)
    for shape in SHAPES:
        run.add("layers", found := layer(*shape))
        if not found["difference"] < TOLERANCE:
            run.problems.append(f"pieces differ: {found}")
    torch.cuda.empty_cache()
    if whole_passes:
        run.results["planned_again_s"], found_passes = passes(model, quantize)
        for each in found_passes:
            run.add("passes", each)
        print(f"plans made again in {run.results['planned_again_s']} s")
    run.end()


if __name__ == "__main__":
    typer.run(main)
