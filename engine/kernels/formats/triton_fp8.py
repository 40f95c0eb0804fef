# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""FP8 weights in a kernel: e4m3 in memory, bfloat16 in the product, one scale per 128 columns.

    acc[t, n] += scale * Σ_k x[t, k] w[n, k],   k over 128 columns that share the scale with all n

The conversion of e4m3 to bfloat16 is exact, and so are the products. The sum of a block is rounded
like any other sum, and scaled once.

Reference: engine/model/matrix.py, dequantise; test: tests/kernels/test_fp8.py,
test_shared_functions.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.formats.triton_nvfp4 import widen
from engine.kernels.triton_dot import INTERPRETED, dot
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import Matrix

BLOCK_K = tl.constexpr(128)
"""Number of columns that share a scale."""


@triton.jit
def widened(b_w):
    """Convert e4m3 to bfloat16 exactly (except NaN).

    Sign, exponent and mantissa move to their places in bfloat16, which gives the number times
    2^-120; one multiplication by a power of two corrects two of them. The conversion through
    float16 and float32 takes as many instructions, but slower ones. PTX has mul.bf16x2 from Hopper
    on only; adding -0 to the product gives the same instruction and bits.
    """
    if INTERPRETED:
        b_wide = b_w.to(tl.bfloat16)
    else:
        b_wide = tl.inline_asm_elementwise(
            """{
            .reg .b32 lo, hi, m, up, zero;
            mov.b32 up, 0x7b807b80;
            mov.b32 zero, 0x80008000;
            prmt.b32 lo, 0, $2, 0x5040;
            prmt.b32 hi, 0, $2, 0x7060;
            shr.u32 m, lo, 4;
            and.b32 m, m, 0x07f007f0;
            lop3.b32 lo, lo, 0x80008000, m, 0xea;
            shr.u32 m, hi, 4;
            and.b32 m, m, 0x07f007f0;
            lop3.b32 hi, hi, 0x80008000, m, 0xea;
            fma.rn.bf16x2 $0, lo, up, zero;
            fma.rn.bf16x2 $1, hi, up, zero;
            }""",
            "=r,=r,r",
            [b_w],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    return b_wide


@triton.jit
def add_product(b_acc, b_x, b_w, p_scale, FP8: tl.constexpr, WEIGHTS_FIRST: tl.constexpr = False):
    """``b_acc + x wᵀ`` [tokens, rows], transposed if WEIGHTS_FIRST (not in FP8); w is scaled if it
    is in FP8."""
    if FP8:
        tl.static_assert(not WEIGHTS_FIRST)
        b_zero = tl.zeros(b_acc.shape, tl.float32)
        b_acc += dot(b_x, tl.trans(widened(b_w).to(b_x.dtype)), b_zero) * tl.load(p_scale)
    elif WEIGHTS_FIRST:
        b_acc = dot(b_w, tl.trans(b_x), b_acc)
    else:
        b_acc = dot(b_x, tl.trans(b_w), b_acc)
    return b_acc


@triton.jit
def _widen_kernel(p_fp8, p_scales, p_out, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o_w = rows.to(tl.int64)[:, None] * K + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    b_w = widened(tl.load(p_fp8 + o_w)).to(tl.float32)
    b_scale = tl.load(p_scales + tl.program_id(0) * (K // BLOCK) + tl.program_id(1))
    wait_for_inputs(PDL)
    tl.store(p_out + o_w, (b_w * b_scale).to(p_out.dtype.element_ty))


def widened_rows(w: Matrix) -> torch.Tensor:
    """Dequantise ``w`` [rows, k] to the plain rows' dtype, for a product that is so large that
    reading its weights twice costs little."""
    num_rows, k = w.shape
    if w.packed is not None:
        out = torch.empty((num_rows, k), dtype=w.plain.dtype, device=w.plain.device)
        widen(w.packed, out[None, : w.num_quantised])
        out[w.num_quantised :].copy_(w.plain)
        return out
    if not w.num_fp8:
        return w.plain
    block = BLOCK_K.value
    assert w.group == block
    assert w.num_fp8 % block == k % block == 0, w.shape
    out = torch.empty((num_rows, k), dtype=w.plain.dtype, device=w.plain.device)
    _widen_kernel[(w.num_fp8 // block, k // block)](
        w.fp8, w.scales, out, K=k, BLOCK=block, num_warps=4, **overlap(out)
    )
    out[w.num_fp8 :].copy_(w.plain)
    return out
