"""Times the weight-bound kernels on one GPU: µs, GB/s or TFLOP/s, and × the floor.

    python -m bench.kernels_moe > kernels_moe.jsonl

Prints one JSON line per measurement on stdout, and a table on stderr (bench/kernel_timing.py). The
chain is a decode step without its mixers: 40 layers of norm, projections and experts.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
import typer

from bench.kernel_timing import FLOPS_PER_S, floor_s, seconds_per_call
from engine.kernels.triton_add_norm import add_rms_norm
from engine.kernels.triton_experts import experts
from engine.kernels.triton_experts_prefill import experts_prefill
from engine.kernels.triton_linear import float_linear, linear, linear_parts
from engine.kernels.triton_route import route, route_shared
from engine.model.matrix import Matrix

LAYERS, EXPERTS, TOP_K, HIDDEN, DIM, VOCAB = 40, 256, 8, 2048, 512, 248_320
ROWS_IN, ROWS_ATTENTION, ROWS_MOE, MIXED = 12_352, 9_216, 1_281, 4_096
# cuBLAS is slow if the rows of the result are not aligned.
ROWS_PADDED = 1_296
EXPERT_BYTES = 3 * HIDDEN * DIM * 2
DECODE = (1, 2, 4, 8, 11, 16, 21, 32, 64, 128, 256)
PREFILL = (512, 1024, 2048, 4096, 8192, 16384)


def draw(*shape: int, std: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda").normal_(0, std)


class Layer:
    """The weights of one layer, except those inside its mixer."""

    def __init__(self, index: int) -> None:
        rows = ROWS_ATTENTION if index % 4 == 3 else ROWS_IN
        self.in_proj = Matrix.of(draw(rows, HIDDEN, std=HIDDEN**-0.5))
        self.out_proj = Matrix.of(draw(HIDDEN, MIXED, std=MIXED**-0.5))
        self.moe_in_padded = draw(ROWS_PADDED, HIDDEN, std=HIDDEN**-0.5)
        self.moe_in = Matrix.of(self.moe_in_padded[:ROWS_MOE])
        self.gate_up = Matrix.of(draw(EXPERTS, 2 * DIM, HIDDEN, std=HIDDEN**-0.5))
        self.down = Matrix.of(draw(EXPERTS, HIDDEN, DIM, std=DIM**-0.5))
        self.shared_down = Matrix.of(draw(HIDDEN, DIM, std=DIM**-0.5))
        self.norm = torch.ones(HIDDEN, device="cuda")

    def dense_bytes(self) -> int:
        dense = (self.in_proj, self.out_proj, self.moe_in, self.shared_down)
        return sum(weight.nbytes for weight in dense)


def report(kernel: str, tokens: int, taken_s: float, num_bytes: float, flops: float = 0.0) -> None:
    floor = floor_s(num_bytes, flops)
    line = {
        "kernel": kernel,
        "tokens": tokens,
        "us": round(taken_s * 1e6, 2),
        "floor_us": round(floor * 1e6, 2),
        "times_floor": round(taken_s / floor, 3),
        "gb_per_s": round(num_bytes / taken_s / 1e9),
        "tflop_per_s": round(flops / taken_s / 1e12, 1),
    }
    print(json.dumps(line), flush=True)
    rate = "{tflop_per_s:8} TFLOP/s" if flops / FLOPS_PER_S >= floor else "{gb_per_s:8} GB/s   "
    row = "{kernel:28}{tokens:6}{us:12} us" + rate + "{times_floor:8} x"
    print(row.format(**line), file=sys.stderr)


def routing(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weights = route(draw(tokens, EXPERTS, dtype=torch.float32), TOP_K)
    return ids, weights


def time_linears() -> None:
    shapes = {
        "in_proj": (ROWS_IN, HIDDEN),
        "attention in_proj": (ROWS_ATTENTION, HIDDEN),
        "out_proj": (HIDDEN, MIXED),
        "moe in_proj": (ROWS_MOE, HIDDEN),
        "lm_head": (VOCAB, HIDDEN),
    }
    for name, (rows, k) in shapes.items():
        copies = [draw(rows, k, std=k**-0.5) for _ in range(max(2, min(48, 10**9 // (rows * k))))]
        matrices = [Matrix.of(copy) for copy in copies]
        for tokens in (1, 2, 4, 8, 11, 16, 21, 32, 64):
            x = draw(tokens, k)
            if name == "lm_head":
                own = [partial(float_linear, x, w) for w in copies]
            else:
                own = [partial(linear_parts if rows <= HIDDEN else linear, x, m) for m in matrices]
            result_bytes = 4 if name == "lm_head" else 2
            num_bytes = copies[0].nbytes + x.nbytes + tokens * rows * result_bytes
            report(name, tokens, seconds_per_call(own), num_bytes)
            cublas = [partial(F.linear, x, w) for w in copies]
            report(name + ", cuBLAS", tokens, seconds_per_call(cublas), num_bytes)


def time_small(norm: torch.Tensor) -> None:
    for tokens in (*DECODE, *PREFILL):
        parts, dtype = (9, torch.float32) if tokens <= 512 else (8, torch.bfloat16)
        hidden, delta = draw(tokens, HIDDEN), draw(tokens, parts, HIDDEN, dtype=dtype)
        add = partial(add_rms_norm, hidden, delta.transpose(0, 1), norm, 1e-6)
        num_bytes = 3 * hidden.nbytes + delta.nbytes
        report(f"add_rms_norm, {parts} parts", tokens, seconds_per_call([add] * 4), num_bytes)
        projected = draw(tokens, ROWS_PADDED)[:, :ROWS_MOE]
        choose = partial(route_shared, projected, EXPERTS, TOP_K, projected.dtype)
        num_bytes = tokens * (ROWS_MOE * 2 + DIM * 2 + TOP_K * 8)
        report("route_shared", tokens, seconds_per_call([choose] * 4), num_bytes)


def time_experts(layers: Sequence[Layer]) -> None:
    for tokens in (*DECODE, 512):
        x, shared = draw(tokens, HIDDEN), draw(tokens, DIM)
        routed = [routing(tokens) for _ in layers]
        calls = [
            partial(experts, x, ids, weights, m.gate_up, m.down, (shared, m.shared_down))
            for (ids, weights), m in zip(routed, layers, strict=True)
        ]
        num_touched = statistics.mean(len(ids.unique()) for ids, _ in routed)
        num_bytes = num_touched * EXPERT_BYTES + HIDDEN * DIM * 2
        flops = tokens * TOP_K * EXPERT_BYTES
        report("experts + shared expert", tokens, seconds_per_call(calls), num_bytes, flops)


def moe_block(hidden: torch.Tensor, x: torch.Tensor, layer: Layer) -> None:
    """The MoE block of a prompt, from its normed input to that of the next layer."""
    projected = F.linear(x, layer.moe_in_padded)[:, :ROWS_MOE]
    ids, weights, shared = route_shared(projected, EXPERTS, TOP_K, x.dtype)
    total = torch.addmm(hidden, shared, layer.shared_down.plain.t())
    y = experts_prefill(x, ids, weights, layer.gate_up, layer.down)
    add_rms_norm(total, y, layer.norm, 1e-6)


def time_prefill(layers: Sequence[Layer]) -> None:
    for tokens in PREFILL:
        x, hidden = draw(tokens, HIDDEN), draw(tokens, HIDDEN)
        num_bytes, flops = EXPERTS * EXPERT_BYTES, tokens * TOP_K * EXPERT_BYTES
        calls = [partial(experts_prefill, x, *routing(tokens), m.gate_up, m.down) for m in layers]
        report("experts_prefill", tokens, seconds_per_call(calls), num_bytes, flops)
        dense = 2 * tokens * HIDDEN * (ROWS_MOE + DIM)
        blocks = [partial(moe_block, hidden, x, layer) for layer in layers]
        report("MoE block of a prompt", tokens, seconds_per_call(blocks), num_bytes, flops + dense)


def time_dense_prefill(tokens: int = 16384) -> None:
    shapes = ((ROWS_IN, HIDDEN), (ROWS_ATTENTION, HIDDEN), (HIDDEN, MIXED), (HIDDEN, DIM))
    for rows, k in (*shapes, (ROWS_MOE, HIDDEN), (ROWS_PADDED, HIDDEN)):
        x, w = draw(tokens, k), draw(rows, k)
        num_bytes, flops = x.nbytes + w.nbytes + tokens * rows * 2, 2 * tokens * rows * k
        taken = seconds_per_call([partial(F.linear, x, w)] * 2)
        report(f"cuBLAS {rows} x {k}", tokens, taken, num_bytes, flops)


def step(hidden: torch.Tensor, layers: Sequence[Layer]) -> list[torch.Tensor]:
    """Run a decode step without its mixers; returns the expert ids of each layer."""
    chosen, y = [], None
    for layer in layers:
        _, x = add_rms_norm(hidden, y, layer.norm, 1e-6)
        mixed = linear(x, layer.in_proj)[:, :MIXED]
        _, x = add_rms_norm(hidden, linear_parts(mixed, layer.out_proj), layer.norm, 1e-6)
        projected = linear_parts(x, layer.moe_in)
        ids, weights, shared = route_shared(projected, EXPERTS, TOP_K, x.dtype)
        y = experts(x, ids, weights, layer.gate_up, layer.down, (shared, layer.shared_down))
        chosen.append(ids)
    return chosen


def time_chain(layers: Sequence[Layer]) -> None:
    for tokens in DECODE[:9]:
        hidden = draw(tokens, HIDDEN)
        num_touched = sum(len(ids.unique()) for ids in step(hidden.clone(), layers))
        num_bytes = num_touched * EXPERT_BYTES + sum(layer.dense_bytes() for layer in layers)
        taken = seconds_per_call([partial(step, hidden, layers)])
        report("40 layers but their mixers", tokens, taken, num_bytes)


def main() -> None:
    """Time all kernels."""
    torch.manual_seed(0)
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}))
    time_linears()
    layers = [Layer(index) for index in range(LAYERS)]
    time_small(layers[0].norm)
    time_experts(layers)
    time_chain(layers)
    time_prefill(layers[:2])
    time_dense_prefill()


if __name__ == "__main__":
    typer.run(main)
