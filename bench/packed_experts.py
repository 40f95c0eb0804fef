"""``python -m bench.packed_experts``: decode's experts in NVFP4, int4 and int8 beside FP8 and BF16,
on one GPU.

For each number of rows: µs and GB/s of one layer's experts in each kind of weights, and how much
NVFP4's sums differ from those of the same weights dequantised to BF16. Tests compare the integers.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench.recording import Recording
from bench.timed_steps import graph_ms
from engine.kernels.experts.triton_experts import experts
from engine.kernels.experts.triton_experts_nvfp4 import experts_nvfp4
from engine.model.int4_experts import Int4Experts
from engine.model.int8_experts import Int8Experts
from engine.model.matrix import Matrix
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.model.packed_experts import IntegerExperts, PackedExperts
from engine.quantized.nvfp4 import dequantise

NUM_EXPERTS, TOP_K, HIDDEN, DIM = 256, 8, 2048, 512
ROWS = 1, 4, 16, 64, 128, 512
NUM_DRAWS = 16
"""Choices of experts in a graph, so that weights are read from memory rather than from L2."""
REPLAYS = 20
TOLERANCE = 8e-3

Pair = tuple[Nvfp4Experts, Matrix]
Chosen = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def drawn(num_experts: int, rows: int, columns: int, runs: int, device: torch.device) -> Pair:
    """Random experts in NVFP4, and the same values in BF16, exact because the matrix scale is a
    power of two."""
    packed = torch.randint(256, (num_experts, rows, columns // 2), device=device).to(torch.uint8)
    codes = torch.randint(0x30, 0x40, (num_experts, rows, columns // 16), device=device)
    scales = codes.to(torch.uint8).view(torch.float8_e4m3fn)
    matrix_scales = torch.full((num_experts, runs), 2.0**-7, device=device)
    values = torch.stack(
        [
            dequantise(*each).bfloat16()
            for each in zip(packed, scales.float() * 2.0**-7, strict=True)
        ]
    )
    return Nvfp4Experts.of(packed, scales, matrix_scales), Matrix.of(values)


def integers(
    kind: type[IntegerExperts], num_experts: int, rows: int, columns: int, runs: int
) -> IntegerExperts:
    """Random integers, as dummy weights have them."""
    device = torch.device("cuda")
    made = kind.empty(num_experts, (rows // runs,) * runs, columns, device)
    made.draw(torch.Generator(device).manual_seed(0))
    return made


def chosen(
    num_rows: int, num_experts: int, top_k: int, hidden: int, device: torch.device
) -> Chosen:
    """(inputs, ids, weights) of one step."""
    x = torch.randn(num_rows, hidden, device=device).bfloat16()
    ids = torch.rand(num_rows, num_experts, device=device).argsort(1)[:, :top_k].int()
    return x, ids.contiguous(), torch.rand(num_rows, top_k, device=device)


def difference(step: Chosen, gate_up: Pair, down: Pair) -> float:
    """Relative difference of NVFP4's contributions and those of the dequantised weights."""
    four_bit = experts_nvfp4(*step, gate_up[0], down[0])
    plain = experts(*step, gate_up[1], down[1])
    return float((four_bit - plain).norm() / plain.norm())


def timed_us(run: Callable[[Chosen], object], steps: list[Chosen]) -> float:
    """µs of one step, as the mean of replays of a CUDA graph of all ``steps``."""

    def all_steps() -> None:
        for step in steps:
            run(step)

    all_steps()
    return 1e3 * graph_ms(all_steps, REPLAYS) / len(steps)


def _packed(gate_up: PackedExperts, down: PackedExperts, step: Chosen) -> torch.Tensor:
    return experts_nvfp4(*step, gate_up, down)


def _plain(gate_up: Matrix, down: Matrix, step: Chosen) -> torch.Tensor:
    return experts(*step, gate_up, down)


def main(
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("packed-experts.json"),
) -> None:
    settings = {"experts": NUM_EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "dim": DIM}
    run, device = Recording("bench.packed_experts", out, settings), torch.device("cuda")
    torch.manual_seed(0)
    gate_up = drawn(NUM_EXPERTS, 2 * DIM, HIDDEN, 2, device)
    down = drawn(NUM_EXPERTS, HIDDEN, DIM, 1, device)
    fp8 = Matrix.converted(gate_up[1].plain), Matrix.converted(down[1].plain)
    packed: dict[str, tuple[PackedExperts, PackedExperts]] = {"nvfp4": (gate_up[0], down[0])}
    for kind in (Int4Experts, Int8Experts):
        packed[kind.FORMAT] = (
            integers(kind, NUM_EXPERTS, 2 * DIM, HIDDEN, 2),
            integers(kind, NUM_EXPERTS, HIDDEN, DIM, 1),
        )
    kinds: dict[str, tuple[Callable[[Chosen], object], int]] = {
        name: (partial(_packed, *pair), pair[0].nbytes + pair[1].nbytes)
        for name, pair in packed.items()
    }
    for name, pair in {"fp8": fp8, "bf16": (gate_up[1], down[1])}.items():
        kinds[name] = partial(_plain, *pair), pair[0].nbytes + pair[1].nbytes
    for num_rows in ROWS:
        steps = [chosen(num_rows, NUM_EXPERTS, TOP_K, HIDDEN, device) for _ in range(NUM_DRAWS)]
        share = sum(step[1].unique().numel() for step in steps) / NUM_DRAWS / NUM_EXPERTS
        each: dict[str, Any] = {"rows": num_rows}
        for name, (compute, num_bytes) in kinds.items():
            us = timed_us(compute, steps)
            each |= {f"{name}_us": us, f"{name}_gb_per_s": share * num_bytes / us / 1e3}
        each["difference"] = difference(steps[0], gate_up, down)
        run.add("steps", each)
        if not each["difference"] < TOLERANCE:
            run.problems.append(f"NVFP4 differs: {each}")
    run.end()


if __name__ == "__main__":
    typer.run(main)
