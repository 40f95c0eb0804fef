"""Time the kernels of the sequence mixers and of sampling at the model's sizes.

    python -m bench.kernels_mixer [--only delta_decode …] [--once]

Prints a JSON line for each kernel and case: µs of one call, GB/s or TFLOP/s, and how many times
the floor that is (bench/kernel_timing.py). Calls rotate through layers and sequences. tests/kernels
checks that results are right.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from bench.kernel_timing import BYTES_PER_S, FLOPS_PER_S, floor_s, seconds_per_call
from engine.kernels.triton_attention_decode import AttentionWorkspace, attention_decode
from engine.kernels.triton_attention_prefill import attention_prefill
from engine.kernels.triton_conv import conv_qkv
from engine.kernels.triton_delta_decode import DeltaWorkspace, delta_decode
from engine.kernels.triton_delta_prefill import delta_prefill
from engine.kernels.triton_gated_norm import gated_rms_norm
from engine.kernels.triton_prefill_plan import PrefillPlan
from engine.kernels.triton_rope_cache import rope_cache
from engine.kernels.triton_sampling import SamplingWorkspace, draw
from engine.kernels.triton_threshold import TILE, ThresholdWorkspace, lowest_kept

EPS = 1e-6
K_HEADS, V_HEADS, DELTA_DIM = 16, 32, 128
CHANNELS, VALUE_DIM = 8192, 4096
HEADS, KV_HEADS, HEAD_DIM, PAGE, ATTENTION_LAYERS = 16, 2, 256, 64, 10
NUM_IDS, VALID_IDS = 248320, 248077


@dataclass(frozen=True)
class Case:
    """One case to time; its ``calls`` cost the same and touch different memory."""

    kernel: str
    case: str
    variant: str
    calls: Sequence[Callable[[], Any]]
    num_bytes: float = 0.0
    flops: float = 0.0

    @property
    def named(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "case": self.case, "variant": self.variant}

    def timed(self) -> dict[str, Any]:
        seconds = seconds_per_call(self.calls)
        line = self.named | {"us": round(seconds * 1e6, 2)}
        if self.flops / FLOPS_PER_S > self.num_bytes / BYTES_PER_S:
            line["tflop_s"] = round(self.flops / seconds / 1e12, 1)
        else:
            line["gb_s"] = round(self.num_bytes / seconds / 1e9, 1)
        return line | {"x_floor": round(seconds / floor_s(self.num_bytes, self.flops), 2)}


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device="cuda")


class DeltaLayer:
    """Weights of one Gated DeltaNet layer, and the states of many layers."""

    def __init__(self, slots: int, layers: int) -> None:
        self.conv = normal(CHANNELS, 4) / 2
        self.neg_exp_a = -torch.rand(V_HEADS, device="cuda").exp()
        self.dt_bias = normal(V_HEADS, dtype=torch.float32)
        self.norm = torch.rand(DELTA_DIM, device="cuda") + 0.5
        self.conv_state = normal(slots, layers, CHANNELS, 3)
        self.state = normal(slots, layers, V_HEADS, DELTA_DIM, DELTA_DIM, dtype=torch.float32)

    def projected(self, tokens: int) -> torch.Tensor:
        return normal(tokens, CHANNELS + VALUE_DIM + 2 * V_HEADS)


def delta_decode_cases() -> Iterator[Case]:
    layers, slots = 30, 128
    layer = DeltaLayer(slots, layers)
    workspace = DeltaWorkspace.allocate(slots, V_HEADS, DELTA_DIM, torch.device("cuda"))

    def call(projected: torch.Tensor, index: int, rows: torch.Tensor) -> torch.Tensor:
        return delta_decode(
            projected, layer.neg_exp_a, layer.dt_bias, layer.norm, layer.state[:, index], rows,
            EPS, workspace,
        )  # fmt: skip

    for num_rows in (1, 2, 4, 8, 16, 32, 64, 128):
        projected = layer.projected(num_rows)
        num_bytes = 2.0 * 4 * V_HEADS * DELTA_DIM**2
        num_bytes = num_rows * (num_bytes + 2 * projected.shape[1] + 2 * VALUE_DIM)
        calls = []
        for i in range(layers * (2 if num_rows < 16 else 1)):
            first = (i // layers) * num_rows + 3 * i
            row_slots = (torch.arange(num_rows, device="cuda") + first) % slots
            calls.append(partial(call, projected, i % layers, row_slots.int()))
        yield Case("delta_decode", f"B={num_rows}", "default", calls, num_bytes)


def delta_prefill_cases() -> Iterator[Case]:
    layer = DeltaLayer(slots=16, layers=2)
    for starts, lens in (([0] * 16, [1024] * 16), ([0] * 2, [8192] * 2), ([8192], [4096])):
        plan = PrefillPlan.of(starts, lens, torch.device("cuda"))
        tokens = sum(lens)
        case = f"{len(lens)}x{lens[0]}+{starts[0]}"
        projected = layer.projected(tokens)
        slots = torch.arange(len(lens), device="cuda")
        _, z, b, a = projected.split_with_sizes((CHANNELS, VALUE_DIM, V_HEADS, V_HEADS), 1)
        conv = partial(
            conv_qkv, projected, layer.conv, layer.conv_state[:, 0], slots, plan,
            K_HEADS, DELTA_DIM, DELTA_DIM,
        )  # fmt: skip
        q, k, v = conv()
        moved = 2.0 * tokens * CHANNELS
        yield Case("delta_prefill.conv", case, "default", [conv] * 4, 2 * moved)
        rule = partial(
            delta_prefill, q, k, v, b, a, layer.neg_exp_a, layer.dt_bias, layer.state[:, 1], slots,
            plan,
        )  # fmt: skip
        moved += 2.0 * tokens * VALUE_DIM
        yield Case("delta_prefill.rule", case, "0x4x3", [rule] * 4, moved)
        norm = partial(gated_rms_norm, rule(), z, layer.norm, EPS)
        yield Case("delta_prefill.norm", case, "default", [norm] * 4, 6.0 * tokens * VALUE_DIM)
        yield from fla_cases(layer, case, (q, k, v, b, a), lens, moved)


def fla_cases(
    layer: DeltaLayer, case: str, inputs: Any, lens: list[int], moved: float
) -> Iterator[Case]:
    """The same rule by flash-linear-attention, if it is installed, to compare with."""
    try:
        from fla.ops.gated_delta_rule import (  # type: ignore[import-not-found, unused-ignore]
            chunk_gated_delta_rule,
        )
    except ImportError:
        return
    q, k, v, b, a = inputs
    firsts = torch.tensor([0, *lens], device="cuda").cumsum(0)
    beta, g = b.float().sigmoid(), F.softplus(a.float() + layer.dt_bias) * layer.neg_exp_a
    rule = partial(
        chunk_gated_delta_rule, q[None], k[None], v[None], g[None], beta[None], scale=1.0,
        initial_state=layer.state[: len(lens), 1].contiguous(), output_final_state=True,
        cu_seqlens=firsts,
    )  # fmt: skip
    with torch.inference_mode():
        rule()
        yield Case("delta_prefill.rule", case, "fla", [rule] * 4, moved)


class Pages:
    """A page pool and disjoint random block tables."""

    def __init__(self, num_pages: int) -> None:
        shape = (num_pages, ATTENTION_LAYERS, 2, PAGE, KV_HEADS, HEAD_DIM)
        self.kv = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        for first in range(0, num_pages, 64):
            self.kv[first : first + 64].normal_()
        self.order = torch.randperm(num_pages, device="cuda")
        self.weight = torch.rand(KV_HEADS + HEADS, HEAD_DIM, device="cuda") + 0.5
        self.inv_freq = 1e7 ** -(torch.arange(32, device="cuda") / 32)

    def tables(self, num_rows: int, length: int, shift: int = 0) -> torch.Tensor:
        pages = -(-length // PAGE)
        order = self.order.roll(shift * num_rows * pages)
        return order[: num_rows * pages].view(num_rows, pages).int().contiguous()


def attention_decode_cases() -> Iterator[Case]:
    pages = Pages(2560)
    workspace = AttentionWorkspace.allocate(64, HEADS, HEAD_DIM, torch.device("cuda"))
    sizes = ((64, 1024), (64, 2048), (16, 1024), (8, 1024), (1, 1024), (1, 32768), (1, 131072))
    for num_rows, length in sizes:
        gate = normal(num_rows, 9216)[:, 18 * HEAD_DIM : 34 * HEAD_DIM]
        ends = torch.full((num_rows,), length, dtype=torch.int32, device="cuda")
        some = [pages.tables(num_rows, length, shift) for shift in range(3)]
        q = normal(num_rows, HEADS, HEAD_DIM)
        num_bytes = num_rows * (length * 4.0 * KV_HEADS * HEAD_DIM + 3 * 2 * HEADS * HEAD_DIM)
        calls = [
            partial(
                attention_decode, q, gate, pages.kv, i % 10, some[i // 10], ends, workspace,
                block=64, num_warps=4, num_stages=2,
            )
            for i in range(30)
        ]  # fmt: skip
        yield Case("attention_decode", f"B={num_rows} len={length}", "64x4x2", calls, num_bytes)
    for num_rows in (1, 64, 16384):
        x = normal(num_rows, 9216)
        rows = torch.arange(num_rows, device="cuda").int() // 1024 if num_rows > 64 else None
        tables = pages.tables(min(num_rows, 64), 1024)
        positions = torch.arange(num_rows, device="cuda").int() % 1024
        num_bytes = 2.0 * num_rows * (9216 - 4096 + 5120)
        calls = [
            partial(
                rope_cache, x, pages.weight, pages.inv_freq, positions, rows, tables, pages.kv, i,
                EPS,
            )
            for i in range(10)
        ]  # fmt: skip
        yield Case("rope_cache", f"tokens={num_rows}", "default", calls, num_bytes)


def attention_prefill_cases() -> Iterator[Case]:
    pages = Pages(512)
    for starts, lens in (([0], [8192]), ([0] * 16, [1024] * 16), ([8192], [2048]), ([0], [2048])):
        tables = pages.tables(len(lens), starts[0] + lens[0])
        tokens = sum(lens)
        q, gate = normal(tokens, HEADS, HEAD_DIM), normal(tokens, 4096)
        flops = len(lens) * 4.0 * HEADS * HEAD_DIM * lens[0] * (starts[0] + (lens[0] + 1) / 2)
        plan = PrefillPlan.of(starts, lens, torch.device("cuda"), tile_len=16)
        calls = [
            partial(
                attention_prefill, q, gate, pages.kv, i, tables, plan,
                block=64, num_warps=8, num_stages=2,
            )
            for i in range(4)
        ]  # fmt: skip
        case = f"{len(lens)}x{lens[0]}+{starts[0]}"
        yield Case("attention_prefill", case, "16x64x8x2", calls, 0.0, flops)


def sampling_cases() -> Iterator[Case]:
    workspace = SamplingWorkspace.allocate(128, NUM_IDS, torch.device("cuda"))
    slots = torch.arange(128, device="cuda").int()
    seeds = torch.randint(-(2**62), 2**62, (128,), device="cuda")
    next_token = torch.zeros(128, dtype=torch.int64, device="cuda")
    for num_rows, temperature in product((1, 64), (0.0, 0.8)):
        logits = [normal(num_rows, NUM_IDS, dtype=torch.float32) for _ in range(4)]
        temperatures = torch.full((128,), temperature, device="cuda")
        positions = torch.arange(num_rows, device="cuda") + 1000
        args = (temperatures, seeds, slots[:num_rows], positions, workspace)
        calls = [
            partial(draw, x, VALID_IDS, *args, next_token=next_token, tiles_each=0, num_warps=8)
            for x in logits
        ]
        num_bytes = float(num_rows * VALID_IDS * logits[0].itemsize)
        yield Case("draw", f"B={num_rows} t={temperature}", "0x8", calls, num_bytes)
    yield from filter_cases()


def filter_cases() -> Iterator[Case]:
    """The filters of Qwen's defaults: top_k 20, then top_p 0.95."""
    ones, zeros = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    top_k = torch.full((64,), 20, device="cuda")
    for num_rows in (1, 2, 4, 8, 16, 32, 64):
        logits = [normal(num_rows, NUM_IDS, dtype=torch.float32) for _ in range(4)]
        slots = torch.randperm(64, device="cuda")[:num_rows]
        workspace = ThresholdWorkspace.allocate(num_rows, VALID_IDS, torch.device("cuda"))
        calls = [
            partial(lowest_kept, x, VALID_IDS, ones, top_k, 0.95 * ones, zeros, slots, workspace)
            for x in logits
        ]
        num_bytes = float(num_rows * VALID_IDS * logits[0].itemsize)
        yield Case("lowest_kept", f"B={num_rows}", f"{TILE}x4", calls, num_bytes)


SECTIONS = {
    "delta_decode": delta_decode_cases,
    "sampling": sampling_cases,
    "attention_decode": attention_decode_cases,
    "attention_prefill": attention_prefill_cases,
    "delta_prefill": delta_prefill_cases,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--once", action="store_true", help="run each case once, untimed")
    args = parser.parse_args()
    for name in args.only:
        for case in SECTIONS[name]():
            try:
                if args.once:
                    case.calls[0]()
                else:
                    print(json.dumps(case.timed()), flush=True)
            except Exception as error:
                print(json.dumps(case.named | {"error": repr(error)[:300]}), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
