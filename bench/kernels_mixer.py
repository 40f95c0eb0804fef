"""Time the kernels of the sequence mixers and of sampling at the model's sizes.

    python -m bench.kernels_mixer [--only delta_decode …] [--quick]

Prints a JSON line for each kernel, case and variant: µs of one call, GB/s or TFLOP/s, and how many
times the floor that is: the bytes it must move at the measured 4.3 TB/s, or its products at
790 TFLOP/s. Calls are replayed from a CUDA graph and rotate through layers and sequences, so that
their data come from memory, not from L2. Relative errors against plain PyTorch come first.
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

from engine.inputs import Rows
from engine.kernels import torch_attention, torch_conv, torch_delta_rule, torch_norm
from engine.kernels.philox import gumbel_noise
from engine.kernels.triton_attention_decode import AttentionWorkspace, attention_decode
from engine.kernels.triton_attention_prefill import attention_prefill
from engine.kernels.triton_conv import conv_qkv
from engine.kernels.triton_delta_decode import DeltaWorkspace, delta_decode
from engine.kernels.triton_delta_prefill import delta_prefill
from engine.kernels.triton_gated_norm import gated_rms_norm
from engine.kernels.triton_prefill_plan import PrefillPlan
from engine.kernels.triton_rope_cache import rope_cache
from engine.kernels.triton_sampling import SamplingWorkspace, draw

BYTES_PER_S, FLOPS_PER_S = 4.3e12, 790e12
EPS = 1e-6
K_HEADS, V_HEADS, DELTA_DIM = 16, 32, 128
CHANNELS, VALUE_DIM = 8192, 4096
HEADS, KV_HEADS, HEAD_DIM, PAGE, ATTENTION_LAYERS = 16, 2, 256, 64, 10
NUM_IDS, VALID_IDS = 248320, 248077


@dataclass(frozen=True)
class Case:
    """One thing to time: ``calls`` are equal in cost and touch different memory."""

    kernel: str
    case: str
    variant: str
    calls: Sequence[Callable[[], Any]]
    num_bytes: float = 0.0
    flops: float = 0.0

    @property
    def floor_s(self) -> float:
        return max(self.num_bytes / BYTES_PER_S, self.flops / FLOPS_PER_S)


def seconds_per_call(calls: Sequence[Callable[[], Any]], replays: int = 12) -> float:
    """Median over graph replays of all ``calls``."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    times: list[float] = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return sorted(times)[len(times) // 2] / len(calls)


def report(case: Case) -> None:
    seconds = seconds_per_call(case.calls)
    line: dict[str, object] = {
        "kernel": case.kernel,
        "case": case.case,
        "variant": case.variant,
        "us": round(seconds * 1e6, 2),
    }
    if case.flops / FLOPS_PER_S > case.num_bytes / BYTES_PER_S:
        line["tflop_s"] = round(case.flops / seconds / 1e12, 1)
    else:
        line["gb_s"] = round(case.num_bytes / seconds / 1e9, 1)
    line["x_floor"] = round(seconds / case.floor_s, 2)
    print(json.dumps(line), flush=True)


def report_error(kernel: str, case: str, out: torch.Tensor, truth: torch.Tensor) -> None:
    error = float((out.double() - truth.double()).norm() / truth.double().norm())
    line = {"kernel": kernel, "case": case, "relative_error": float(f"{error:.2e}")}
    print(json.dumps(line), flush=True)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device="cuda")


class DeltaLayer:
    """Weights of one Gated DeltaNet layer and the state of many."""

    def __init__(self, slots: int, layers: int) -> None:
        self.conv = normal(CHANNELS, 4) / 2
        self.neg_exp_a = -torch.rand(V_HEADS, device="cuda").exp()
        self.dt_bias = normal(V_HEADS, dtype=torch.float32)
        self.norm = torch.rand(DELTA_DIM, device="cuda") + 0.5
        self.conv_state = normal(slots, layers, CHANNELS, 3)
        self.state = normal(slots, layers, V_HEADS, DELTA_DIM, DELTA_DIM, dtype=torch.float32)

    def projected(self, tokens: int) -> torch.Tensor:
        return normal(tokens, CHANNELS + VALUE_DIM + 2 * V_HEADS)

    def parts(self, projected: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return projected.split_with_sizes((CHANNELS, VALUE_DIM, V_HEADS, V_HEADS), 1)

    def truth(
        self, projected: torch.Tensor, conv: torch.Tensor | None, state: torch.Tensor, rows: Rows
    ) -> torch.Tensor:
        """With ``conv`` None of a projection that is convolved already."""
        qkv, z, b, a = self.parts(projected.float())
        decode = max(rows.lens) == 1
        if conv is not None:
            qkv = torch_conv.conv_prefill(qkv, self.conv.float(), conv.float(), rows).bfloat16()
        q, k, v = torch_delta_rule.split_qk(qkv, V_HEADS, DELTA_DIM, DELTA_DIM)
        beta, g = b.sigmoid(), F.softplus(a + self.dt_bias) * self.neg_exp_a
        if decode:
            out = torch_delta_rule.recurrent(q, k, v, g.exp(), beta, state, rows)
        else:
            out = torch_delta_rule.chunked(q, k, v, g, beta, state, rows)
        return torch_norm.gated_rms_norm(out, z.view(out.shape), self.norm, EPS).flatten(1)


def rows_of(slots: torch.Tensor, starts: list[int], lens: list[int]) -> Rows:
    return Rows(slots, slots, slots[:, None], tuple(starts), tuple(lens), PAGE, PAGE)


def delta_decode_cases(quick: bool) -> Iterator[Case]:
    layers, slots = 30, 128
    layer = DeltaLayer(slots, layers)
    workspace = DeltaWorkspace.allocate(slots, V_HEADS, DELTA_DIM, torch.device("cuda"))

    def call(
        projected: torch.Tensor, index: int, rows: torch.Tensor, columns: int, warps: int,
    ) -> torch.Tensor:  # fmt: skip
        return delta_decode(
            projected, layer.neg_exp_a, layer.dt_bias, layer.norm, layer.state[:, index], rows,
            EPS, workspace, block_columns=columns, num_warps=warps,
        )  # fmt: skip

    variants = [(0, 0)]
    if not quick:
        variants += [(32, 1), (64, 2), (64, 4), (128, 4)]
    slot_ids = torch.randperm(slots, device="cuda")[:5]
    projected = layer.projected(5)
    for columns, warps in variants:
        state = layer.state[:, 0].clone()
        for _ in range(2):
            out = call(projected, 0, slot_ids.int(), columns, warps)
            truth = layer.truth(projected, None, state, rows_of(slot_ids, [9] * 5, [1] * 5))
        report_error("delta_decode", f"out {columns}x{warps}", out, truth)
        report_error("delta_decode", f"state {columns}x{warps}", layer.state[:, 0], state)
    for num_rows in (1, 2, 4, 8, 16, 32, 64, 128):
        projected = layer.projected(num_rows)
        num_bytes = 2.0 * 4 * V_HEADS * DELTA_DIM**2
        num_bytes = num_rows * (num_bytes + 2 * projected.shape[1] + 2 * VALUE_DIM)
        for columns, warps in variants:
            calls = []
            for i in range(layers * (2 if num_rows < 16 else 1)):
                first = (i // layers) * num_rows + 3 * i
                row_slots = (torch.arange(num_rows, device="cuda") + first) % slots
                args = (projected, i % layers, row_slots.int(), columns, warps)
                calls.append(partial(call, *args))
            name = f"{columns}x{warps}" if columns else "default"
            yield Case("delta_decode", f"B={num_rows}", name, calls, num_bytes)


def delta_prefill_cases(quick: bool) -> Iterator[Case]:
    slots, layers = 16, 2
    layer = DeltaLayer(slots, layers)
    device = torch.device("cuda")
    starts, lens = [0, 64, 0, 128], [70, 2, 1, 700]
    slot_ids = torch.tensor([2, 5, 0, 3], device="cuda")
    projected = layer.projected(sum(lens))
    conv, state = layer.conv_state[:, 0].clone(), layer.state[:, 0].clone()
    for columns, warps, stages in ((0, 4, 3), (64, 4, 3)):
        layer.conv_state[:, 0], layer.state[:, 0] = conv, state
        true_state = state.clone()
        truth = layer.truth(projected, conv, true_state, rows_of(slot_ids, starts, lens))
        plan = PrefillPlan.of(starts, lens, device)
        out = whole_delta_prefill(layer, projected, 0, slot_ids, plan, columns, warps, stages)
        name = f"{columns}x{warps}x{stages}"
        report_error("delta_prefill", f"out {name}", out, truth)
        report_error("delta_prefill", f"state {name}", layer.state[:, 0], true_state)

    for starts, lens in (([0] * 16, [1024] * 16), ([0] * 2, [8192] * 2), ([8192], [4096])):
        plan = PrefillPlan.of(starts, lens, device)
        tokens = sum(lens)
        case = f"{len(lens)}x{lens[0]}+{starts[0]}"
        projected = layer.projected(tokens)
        slot_ids = torch.arange(len(lens), device="cuda")
        _, z, b, a = layer.parts(projected)
        q, k, v = conv_qkv(
            projected, layer.conv, layer.conv_state[:, 0], slot_ids, plan,
            K_HEADS, DELTA_DIM, DELTA_DIM,
        )  # fmt: skip
        moved = 2.0 * tokens * CHANNELS
        yield Case(
            "delta_prefill.conv", case, "default",
            [partial(
                conv_qkv, projected, layer.conv, layer.conv_state[:, 0], slot_ids, plan,
                K_HEADS, DELTA_DIM, DELTA_DIM,
            )] * 4, 2 * moved,
        )  # fmt: skip
        variants = [(0, 4, 3)]
        if not quick:
            variants += [(64, 4, 3), (32, 4, 3)]
        for columns, warps, stages in variants:

            def rule(
                q: Any = q, k: Any = k, v: Any = v, b: Any = b, a: Any = a, s: Any = slot_ids,
                plan: Any = plan, config: Any = (columns, warps, stages),
            ) -> torch.Tensor:  # fmt: skip
                return delta_prefill(
                    q, k, v, b, a, layer.neg_exp_a, layer.dt_bias, layer.state[:, 1], s, plan,
                    block_columns=config[0], num_warps=config[1], num_stages=config[2],
                )  # fmt: skip

            name = f"{columns}x{warps}x{stages}"
            yield Case("delta_prefill.rule", case, name, [rule] * 4, moved + 2.0 * tokens * 4096)
        out = rule()
        yield Case(
            "delta_prefill.norm", case, "default",
            [partial(gated_rms_norm, out, z, layer.norm, EPS)] * 4,
            3 * 2.0 * tokens * VALUE_DIM,
        )  # fmt: skip
        yield from fla_cases(layer, case, q, k, v, b, a, lens, moved + 2.0 * tokens * 4096)


def whole_delta_prefill(
    layer: DeltaLayer,
    projected: torch.Tensor,
    index: int,
    slots: torch.Tensor,
    plan: PrefillPlan,
    columns: int,
    warps: int,
    stages: int,
) -> torch.Tensor:
    _, z, b, a = layer.parts(projected)
    q, k, v = conv_qkv(
        projected, layer.conv, layer.conv_state[:, index], slots, plan,
        K_HEADS, DELTA_DIM, DELTA_DIM,
    )  # fmt: skip
    out = delta_prefill(
        q, k, v, b, a, layer.neg_exp_a, layer.dt_bias, layer.state[:, index], slots, plan,
        block_columns=columns, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return gated_rms_norm(out, z, layer.norm, EPS)


def fla_cases(
    layer: DeltaLayer, case: str, q: Any, k: Any, v: Any, b: Any, a: Any, lens: Any, moved: float
) -> Iterator[Case]:
    """The same rule by flash-linear-attention, if it is installed: a yardstick."""
    try:
        from fla.ops.gated_delta_rule import (  # type: ignore[import-not-found, unused-ignore]
            chunk_gated_delta_rule,
        )
    except ImportError:
        return
    firsts = torch.tensor([0, *lens], device="cuda").cumsum(0)
    beta, g = b.float().sigmoid(), F.softplus(a.float() + layer.dt_bias) * layer.neg_exp_a
    state = layer.state[: len(lens), 1].contiguous()

    def rule() -> object:
        return chunk_gated_delta_rule(
            q[None], k[None], v[None], g[None], beta[None], scale=1.0, initial_state=state,
            output_final_state=True, cu_seqlens=firsts,
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

    def truth(
        self, q: torch.Tensor, gate: torch.Tensor, layer: int, rows: Rows, *, decode: bool
    ) -> torch.Tensor:
        k_rows, v_rows = torch_attention.layer_rows(self.kv, layer)
        attend = torch_attention.attend_decode if decode else torch_attention.attend_prefill
        return (attend(q, k_rows, v_rows, rows) * gate.view(q.shape).sigmoid()).flatten(1)

    def rows(self, tables: torch.Tensor, starts: list[int], lens: list[int]) -> Rows:
        ends = torch.tensor([s + n for s, n in zip(starts, lens, strict=True)], device="cuda")
        page_rows = ATTENTION_LAYERS * 2 * PAGE
        return Rows(ends, ends, tables.long(), tuple(starts), tuple(lens), PAGE, page_rows)


def attention_decode_cases(quick: bool) -> Iterator[Case]:
    pages = Pages(2560)
    device = torch.device("cuda")
    workspace = AttentionWorkspace.allocate(64, HEADS, HEAD_DIM, device)
    lens = [1, 64, 700, 2000]
    tables = pages.tables(4, 2048)
    projected = normal(4, 9216)
    gate = projected[:, 18 * HEAD_DIM : 34 * HEAD_DIM]
    ends = torch.tensor(lens, dtype=torch.int32, device="cuda")
    q = rope_cache(
        projected, pages.weight, pages.inv_freq, ends - 1, None, tables, pages.kv, 3, EPS
    )
    rope = torch_norm.rope_table(ends - 1, pages.inv_freq)
    heads = projected.view(4, -1, HEAD_DIM)
    kq = torch_norm.norm_rope(heads[:, :18], pages.weight, rope, EPS)
    report_error("rope_cache", "q", q, kq[:, 2:])
    rows = pages.rows(tables, [n - 1 for n in lens], [1] * 4)
    k_rows, v_rows = torch_attention.layer_rows(pages.kv, 3)
    report_error("rope_cache", "k", k_rows[rows.new_rows], kq[:, :2])
    report_error("rope_cache", "v", v_rows[rows.new_rows], heads[:, 34:])
    truth = pages.truth(q, gate, 3, rows, decode=True)
    for programs in (1, 8, 40):
        out = attention_decode(q, gate, pages.kv, 3, tables, ends, workspace, num_programs=programs)
        report_error("attention_decode", f"programs={programs}", out, truth)

    sizes = ((64, 1024), (64, 2048), (16, 1024), (8, 1024), (1, 1024), (1, 32768), (1, 131072))
    for num_rows, length in sizes:
        projected = normal(num_rows, 9216)
        gate = projected[:, 18 * HEAD_DIM : 34 * HEAD_DIM]
        ends = torch.full((num_rows,), length, dtype=torch.int32, device="cuda")
        some = [pages.tables(num_rows, length, shift) for shift in range(3)]
        q = normal(num_rows, HEADS, HEAD_DIM)
        num_bytes = num_rows * (length * 4.0 * KV_HEADS * HEAD_DIM + 3 * 2 * HEADS * HEAD_DIM)
        case = f"B={num_rows} len={length}"
        for block, warps, stages in ((64, 4, 2), (64, 4, 3))[: 1 if quick else 2]:

            def call(
                i: int, q: Any = q, gate: Any = gate, some: Any = some, ends: Any = ends,
                config: Any = (block, warps, stages),
            ) -> torch.Tensor:  # fmt: skip
                block, warps, stages = config
                return attention_decode(
                    q, gate, pages.kv, i % 10, some[i // 10], ends, workspace,
                    block=block, num_warps=warps, num_stages=stages,
                )  # fmt: skip

            calls = [partial(call, i) for i in range(30)]
            yield Case("attention_decode", case, f"{block}x{warps}x{stages}", calls, num_bytes)

    for num_rows in (1, 64, 16384):
        projected = normal(num_rows, 9216)
        some_rows = torch.arange(num_rows, device="cuda").int() // 1024 if num_rows > 64 else None
        tables = pages.tables(min(num_rows, 64), 1024)
        positions = torch.arange(num_rows, device="cuda").int() % 1024
        num_bytes = 2.0 * num_rows * (9216 - 4096 + 5120)

        def rope_call(
            i: int, x: Any = projected, p: Any = positions, r: Any = some_rows, t: Any = tables
        ) -> torch.Tensor:
            return rope_cache(x, pages.weight, pages.inv_freq, p, r, t, pages.kv, i % 10, EPS)

        calls = [partial(rope_call, i) for i in range(10)]
        yield Case("rope_cache", f"tokens={num_rows}", "default", calls, num_bytes)


def attention_prefill_cases(quick: bool) -> Iterator[Case]:
    pages = Pages(512)
    device = torch.device("cuda")
    variants = [(16, 64, 8, 2)]
    if not quick:
        variants += [(16, 32, 8, 2)]
    starts, lens = [0, 33, 500], [300, 1, 129]
    tables = pages.tables(3, 1024)
    rows = pages.rows(tables, starts, lens)
    q, gate = normal(430, HEADS, HEAD_DIM), normal(430, 4096)
    truth = pages.truth(q, gate, 2, rows, decode=False)
    for tile, block, warps, stages in variants:
        plan = PrefillPlan.of(starts, lens, device, tile_len=tile)
        out = attention_prefill(
            q, gate, pages.kv, 2, tables, plan, block=block, num_warps=warps, num_stages=stages
        )
        report_error("attention_prefill", f"{tile}x{block}x{warps}x{stages}", out, truth)
    for starts, lens in (([0], [8192]), ([0] * 16, [1024] * 16), ([8192], [2048]), ([0], [2048])):
        tables = pages.tables(len(lens), starts[0] + lens[0])
        tokens = sum(lens)
        q, gate = normal(tokens, HEADS, HEAD_DIM), normal(tokens, 4096)
        flops = len(lens) * 4.0 * HEADS * HEAD_DIM * lens[0] * (starts[0] + (lens[0] + 1) / 2)
        for tile, block, warps, stages in variants:
            plan = PrefillPlan.of(starts, lens, device, tile_len=tile)

            def call(
                i: int, q: Any = q, gate: Any = gate, tables: Any = tables, plan: Any = plan,
                config: Any = (block, warps, stages),
            ) -> torch.Tensor:  # fmt: skip
                return attention_prefill(
                    q, gate, pages.kv, i, tables, plan,
                    block=config[0], num_warps=config[1], num_stages=config[2],
                )  # fmt: skip

            calls = [partial(call, i) for i in range(4)]
            case = f"{len(lens)}x{lens[0]}+{starts[0]}"
            name = f"{tile}x{block}x{warps}x{stages}"
            yield Case("attention_prefill", case, name, calls, 0.0, flops)


def sampling_cases(quick: bool) -> Iterator[Case]:
    device = torch.device("cuda")
    workspace = SamplingWorkspace.allocate(128, NUM_IDS, device)
    slots = torch.arange(128, device="cuda").int()
    seeds = torch.randint(-(2**62), 2**62, (128,), device="cuda")
    next_token = torch.zeros(128, dtype=torch.int64, device="cuda")
    for num_rows, temperature in product((1, 64), (0.0, 0.8)):
        logits = [normal(num_rows, NUM_IDS, dtype=torch.float32) for _ in range(4)]
        temperatures = torch.full((128,), temperature, device="cuda")
        positions = torch.arange(num_rows, device="cuda") + 1000
        args = (temperatures, seeds, slots[:num_rows], positions, workspace)
        ids = draw(logits[0], VALID_IDS, *args, next_token=next_token)
        values = logits[0][:, :VALID_IDS]
        if temperature:
            noise = gumbel_noise(seeds[:num_rows], positions, VALID_IDS)
            values = values / temperature + noise
        same = int((ids == values.argmax(-1)).sum())
        case = f"B={num_rows} t={temperature}"
        print(json.dumps({"kernel": "draw", "case": case, "same_tokens": same}), flush=True)
        for tiles, warps in ((0, 8),) if quick else ((0, 8), (16, 8)):
            variant = partial(draw, next_token=next_token, tiles_each=tiles, num_warps=warps)
            calls = [partial(variant, x, VALID_IDS, *args) for x in logits]
            num_bytes = float(num_rows * VALID_IDS * logits[0].itemsize)
            yield Case("draw", case, f"{tiles}x{warps}", calls, num_bytes)


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
    parser.add_argument("--quick", action="store_true", help="the default variants alone")
    parser.add_argument("--once", action="store_true", help="run each case once, untimed")
    args = parser.parse_args()
    for name in args.only:
        for case in SECTIONS[name](args.quick):
            try:
                if args.once:
                    case.calls[0]()
                else:
                    report(case)
            except Exception as error:
                failed = {"kernel": case.kernel, "case": case.case, "variant": case.variant}
                print(json.dumps({**failed, "error": repr(error)[:300]}), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
