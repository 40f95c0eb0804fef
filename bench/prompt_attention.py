"""``python -m bench.prompt_attention``: attention of prompts behind deep contexts, on a Hopper GPU.

Of each shape: one layer's attention by Triton alone, and in pieces (engine/kernels/attention/
attention_pieces.py) by cuDNN and in int8, in ms and TFLOP/s. Of an attention without a mask, with
random numbers: TFLOP/s on a cold GPU and after seconds, and the error against float64.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench.recording import Recording
from engine.kernels.attention import cudnn_attention, int8_attention
from engine.kernels.attention.attention_pieces import Cut
from engine.kernels.attention.cudnn_attention import CUDNN
from engine.kernels.attention.int8_attention import INT8
from engine.kernels.attention.triton_attention_pieces import DeepRows, attention_in_pieces
from engine.kernels.attention.triton_attention_prefill import attention_prefill
from engine.kernels.attention.unmasked import Unmasked
from engine.kernels.batch.triton_prefill_plan import PrefillPlan

HEADS, KV_HEADS, DIM, PAGE, LAYERS = 16, 2, 256, 64, 2
GROUP = HEADS // KV_HEADS
SHAPES = (
    (57_600, 6_400), (57_664, 6_784), (57_344, 2_048), (57_344, 1_024), (16_384, 8_192),
    (8_192, 8_192), (8_192, 2_048), (8_192, 1_024), (131_072, 4_096), (57_344, 512), (16_384, 512),
    (4_096, 4_096), (4_096, 1_024),
)  # fmt: skip
"""Cached and new tokens."""
ROUNDS = 5
COLD, HOT = 8, 1_500
"""Calls of an attention without a mask, after a pause and in a row."""
KEYS, QUERIES = 32_768, 2_048
DRAWN = (
    (1.0, 0.0, 0.0, 0.0), (3.0, 0.0, 0.0, 0.0), (1.0, 0.5, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0),
    (1.0, 0.0, 10.0, 0.0), (1.0, 0.5, 10.0, 0.0), (0.3, 0.0, 0.0, 1.0), (2.0, 0.0, 0.0, 1.0),
)  # fmt: skip
"""How numbers are drawn: the scores' standard deviation, how much of one key is in each query, what
is added to four columns of the keys, and the values' mean."""
NAMES = "scores", "near", "added", "mean"
DIFFERENCE = 0.03
"""From Triton's result, at most: the rounding of int8."""
CHECKED = 64
"""Queries that are compared with float64."""
BOTH = CUDNN, INT8


def timed_ms(run: Callable[[], object], times: int = 1) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(times):
        run()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / times


def layer(start: int, num_new: int) -> dict[str, Any]:
    """One layer's attention of this shape."""
    device, num_pages = torch.device("cuda"), -(-(start + num_new) // PAGE)
    kv = torch.randn(num_pages, LAYERS, 2, PAGE, KV_HEADS, DIM, device=device).bfloat16()
    tables = torch.randperm(num_pages, device=device).int()[None]
    q = torch.randn(num_new, HEADS, DIM, device=device).bfloat16()
    gate = torch.randn(num_new, HEADS * DIM, device=device).bfloat16()
    plan = PrefillPlan.of([start], [num_new], device)
    of = q, gate, kv, 1, tables, plan

    def pieces(unmasked: Unmasked) -> Callable[[], torch.Tensor]:
        rows = DeepRows.of([start], [num_new], deep(unmasked.cut), device)
        return lambda: attention_in_pieces(*of, rows, unmasked)

    runs: dict[str, Callable[[], torch.Tensor]] = {
        "whole": lambda: attention_prefill(*of), "int8": pieces(INT8),
    }  # fmt: skip
    if CUDNN.cut.is_deep(start, num_new):
        runs["cudnn"] = pieces(CUDNN)
    truth = runs["whole"]().float()
    tflop = 4 * HEADS * DIM * (num_new * start + num_new * (num_new + 1) // 2) / 1e12
    found: dict[str, Any] = {"start": start, "new": num_new}
    for name, run in runs.items():
        difference = float((run().float() - truth).norm() / truth.norm())
        ms = statistics.median(timed_ms(run) for _ in range(ROUNDS))
        found |= {f"{name}_ms": round(ms, 3), f"{name}_tflops": round(1e3 * tflop / ms)}
        found[f"{name}_difference"] = round(difference, 5)
    return found


def deep(cut: Cut) -> Cut:
    """The cut, but with every row deep."""
    return replace(cut, least_cached=1, least_new=1, least_pairs=1)


def drawn(
    scores: float, near: float, added: float, mean: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    k = torch.randn(KEYS, KV_HEADS, DIM, device="cuda")
    v = torch.randn(KEYS, KV_HEADS, DIM, device="cuda") * (0.5 if mean else 1.0) + mean
    q = scores * torch.randn(KV_HEADS, QUERIES * GROUP, DIM, device="cuda")
    chosen = torch.randint(0, KEYS, (QUERIES * GROUP,), device="cuda")
    q += near * k[chosen].transpose(0, 1)
    k[:, :, :: DIM // 4] += added
    return q.bfloat16(), k.bfloat16().transpose(0, 1), v.bfloat16().transpose(0, 1)


def error(unmasked: Unmasked, how: tuple[float, float, float, float]) -> float:
    """Root mean square of the error over that of the result."""
    torch.manual_seed(0)
    q, k, v = drawn(*how)
    rows = torch.randint(0, q.shape[1], (CHECKED,), device="cuda")
    scores = q[:, rows].double() @ k.double().transpose(1, 2) * DIM**-0.5
    truth = scores.softmax(-1) @ v.double()
    found = joined(*unmasked.attend(q, k, v))[0][:, rows]
    return float((found - truth).norm() / truth.norm())


def joined(out: torch.Tensor, log_sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The parts that an Unmasked.attend returns as one, in float64."""
    shares = log_sums.double().softmax(0)[..., None]
    return (out.double() * shares).sum(0), log_sums.double().logsumexp(0)


def speed(unmasked: Unmasked) -> dict[str, Any]:
    q, k, v = drawn(1.0, 0.0, 0.0, 0.0)
    tflop = 4 * HEADS * QUERIES * KEYS * DIM / 1e12
    unmasked.attend(q, k, v)
    torch.cuda.synchronize()
    time.sleep(1.0)
    return {
        name: round(1e3 * tflop / timed_ms(lambda: unmasked.attend(q, k, v), calls))
        for name, calls in (("cold_tflops", COLD), ("hot_tflops", HOT))
    }


def main(
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("prompt-attention.json"),
) -> None:
    problem = cudnn_attention.unsupported(torch.bfloat16, DIM)
    if problem or not int8_attention.supported(DIM, GROUP):
        raise SystemExit(f"error: {problem or 'int8 is for Hopper GPUs'}")
    settings = {"keys": KEYS, "queries": QUERIES, "cold_calls": COLD, "hot_calls": HOT}
    run = Recording("bench.prompt_attention", out, settings)
    for shape in SHAPES:
        row = layer(*shape)
        run.add("layers", row)
        if not row["int8_difference"] < DIFFERENCE:
            run.problems.append(f"int8 differs: {row}")
    for each in BOTH:
        run.add("unmasked", {"by": each.name, **speed(each)})
    for how in DRAWN:
        errors = {each.name: error(each, how) for each in BOTH}
        run.add("errors", dict(zip(NAMES, how, strict=True)) | errors)
    run.end()


if __name__ == "__main__":
    typer.run(main)
