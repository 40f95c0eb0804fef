"""Experts in FP8 for prompts on Hopper: the launches of ``gluon_gate_up`` and ``gluon_down``.

Reference: triton_experts_fp8; test: tests/kernels/experts/test_hopper_experts.py,
tests/gpu/test_fp8.py.
"""

import torch

from engine.gpu_arch import HOPPER
from engine.kernels.experts import gluon_down, gluon_gate_up
from engine.kernels.experts.triton_expert_tiles import sizes
from engine.kernels.experts.triton_experts_fp8 import results
from engine.kernels.experts.triton_plan import plan_both
from engine.kernels.formats.triton_quantise import BLOCK, Quantised, quantise_rows
from engine.kernels.hopper_launch import blocks, most_registers
from engine.kernels.triton_arch import arch_of
from engine.kernels.triton_overlap import overlap
from engine.model.matrix import Matrix
from engine.multiprocessors import multiprocessors

_HELD_COLUMNS = 512
"""Columns of down that shared memory holds."""


def suits(x: torch.Tensor, gate_up: Matrix, down: Matrix) -> bool:
    """True if ``experts_hopper`` can compute these experts in FP8."""
    num_tokens, hidden = x.shape
    dim = down.shape[2]
    return (
        arch_of(x) == HOPPER
        and num_tokens * hidden < 1 << 31
        and x.dtype == torch.bfloat16
        and gate_up.group == down.group == BLOCK
        and dim % BLOCK == hidden % gluon_down.ROWS.value == 0
        and dim <= _HELD_COLUMNS
    )


def experts_hopper(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Matrix,
    down: Matrix,
    quantised_x: Quantised | None = None,
) -> torch.Tensor:
    """Contributions [top_k, tokens, hidden] in ``x``'s dtype, to be added per token in that order.

    x [tokens, hidden]; ids int32 and weights float32 [tokens, top_k], -1 for no expert: such
    contributions are undefined. gate_up [experts, 2 * dim, hidden], down [experts, hidden, dim],
    all rows in FP8. ``quantised_x``: ``x`` in FP8, if it has been made already.
    """
    num_tokens, hidden, dim, top_k = sizes(x, ids, weights, gate_up.fp8, down.fp8)
    assert gate_up.scales.is_contiguous()
    assert down.scales.is_contiguous()
    pairs = gluon_gate_up.PAIRS.value
    lists, counts, in_tiles, out_tiles = plan_both(
        ids, down.shape[0], gluon_gate_up.GROUPS.value * pairs, pairs
    )
    q, q_scales = quantised_x or quantise_rows(x)
    h, h_scales, y = results(x, top_k, dim)
    programs, bands = multiprocessors(x.device), hidden // gluon_down.ROWS.value
    gluon_gate_up.gate_up_kernel[(programs,)](
        q,
        q_scales,
        lists,
        counts,
        in_tiles,
        blocks(gate_up.fp8.view(-1, hidden), BLOCK, BLOCK),
        gate_up.scales,
        h,
        h_scales,
        num_tokens,
        q_scales.stride(1),
        in_tiles.shape[1],
        K=hidden,
        DIM=dim,
        TOP_K=top_k,
        num_warps=4,
        maxnreg=_registers(gluon_gate_up.GROUPS.value),
        **overlap(x),
    )
    gluon_down.down_kernel[(max(1, programs // bands) * bands,)](
        blocks(h, pairs, BLOCK),
        h_scales,
        lists,
        counts,
        out_tiles,
        weights,
        blocks(down.fp8.view(-1, dim), gluon_down.ROWS.value, BLOCK),
        down.scales,
        y,
        num_tokens,
        out_tiles.shape[1],
        HIDDEN=hidden,
        DIM=dim,
        num_warps=4,
        maxnreg=_registers(gluon_down.GROUPS.value),
        **overlap(x),
    )
    return y.transpose(0, 1)


def _registers(groups: int) -> int:
    """Registers of a thread at the start, of as many groups that multiply."""
    fetchers: int = gluon_gate_up.FETCHERS.value
    return most_registers(4 * groups + fetchers)
