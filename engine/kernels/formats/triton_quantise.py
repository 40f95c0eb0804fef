# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Activations in FP8: a token's 128 columns share a scale.

scale[t, b] = max(|x[t, 128 b ...]|) / 448;   q[t, c] = e4m3(x[t, c] / scale[t, c // 128])

Reference: engine/model/matrix.py, quantise; test: tests/kernels/test_fp8.py,
test_shared_functions.py.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.formats.triton_split import Split
from engine.kernels.triton_dot import INTERPRETED
from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import FP8

BLOCK = 128
ALIGNMENT = tl.constexpr(16)
"""Tokens are padded to a multiple of this: cuBLAS's condition on scales."""


class Quantised(NamedTuple):
    """Activations in FP8, for the next products: ``q`` e4m3 [padded, k], and ``scales`` float32
    [padded, k / 128], the scales of a block contiguous. Padding is undefined."""

    q: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def empty(cls, num_tokens: int, k: int, device: torch.device) -> "Quantised":
        """Uninitialised memory for a kernel to write."""
        assert k % BLOCK == 0, k
        padded = _padded(num_tokens)
        q = torch.empty((padded, k), dtype=FP8, device=device)
        return cls(q, torch.empty((k // BLOCK, padded), dtype=torch.float32, device=device).t())

    def is_of_rows(self, x: torch.Tensor) -> bool:
        """True if the shapes match x [tokens, k]."""
        padded, k = _padded(x.shape[0]), x.shape[1]
        return (self.q.shape, self.scales.shape) == ((padded, k), (padded, k // BLOCK))


Prepared = Split | Quantised
"""What a product reads instead of an activation in bfloat16: of few tokens two parts, of many one
rounded number."""


def _padded(num_tokens: int) -> int:
    alignment: int = ALIGNMENT.value
    return -(-num_tokens // alignment) * alignment


@triton.jit
def quantised(b_x):
    """Quantise float32 [rows, 128] -> (e4m3 [rows, 128], scales [rows])."""
    # Not 0: columns of zeros are divided by it, and sums are rescaled by the ratio of two scales.
    b_amax = tl.maximum(tl.max(tl.abs(b_x), axis=1), 1e-12)
    b_scaled = b_x * (448.0 / b_amax)[:, None]
    b_scaled = tl.minimum(tl.maximum(b_scaled, -448.0), 448.0)
    if INTERPRETED:
        # The interpreter loses the carry of a mantissa that is rounded up to a power of two: round
        # here, before the conversion.
        b_bits = b_scaled.to(tl.int32, bitcast=True)
        b_bits = (b_bits + 0x7FFFF + ((b_bits >> 20) & 1)) & -0x100000
        b_scaled = b_bits.to(tl.float32, bitcast=True)
    return b_scaled.to(tl.float8e4nv), b_amax / 448.0


@triton.jit
def store_quantised(b_x, p_q, p_scales, token, num_tokens, first, K: tl.constexpr):
    """Quantise float32 [blocks, 128], which are a token's blocks from ``first`` on, and store those
    within its K columns in the memory of a ``Quantised``."""
    BLOCK: tl.constexpr = b_x.shape[1]
    b_q, b_scales = quantised(b_x)
    o_block = first + tl.arange(0, b_x.shape[0])
    mask = o_block * BLOCK < K
    o_q = o_block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(p_q + token * K + o_q, b_q, mask=mask[:, None])
    padded = tl.cdiv(num_tokens, ALIGNMENT) * ALIGNMENT
    tl.store(p_scales + o_block * padded + token, b_scales, mask=mask)


@triton.jit(do_not_specialize=["num_tokens", "stride_scale"])
def _quantise_kernel(
    p_x,
    p_q,
    p_scales,
    num_tokens,
    stride_x,
    stride_scale,
    K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    tokens = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    o_k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    mask = (tokens < num_tokens)[:, None]
    wait_for_inputs(PDL)
    b_x = tl.load(p_x + tokens.to(tl.int64)[:, None] * stride_x + o_k, mask=mask, other=0.0)
    b_q, b_scales = quantised(b_x.to(tl.float32))
    tl.store(p_q + tokens.to(tl.int64)[:, None] * K + o_k, b_q, mask=mask)
    p_scales += tl.program_id(1).to(tl.int64) * stride_scale + tokens
    tl.store(p_scales, b_scales, mask=tokens < num_tokens)


def quantise_rows(x: torch.Tensor) -> Quantised:
    """Quantise x [tokens, k], rows contiguous, k a multiple of 128."""
    num_tokens, k = x.shape
    assert x.stride(1) == 1
    made = Quantised.empty(num_tokens, k, x.device)
    if num_tokens:
        _quantise_kernel[(triton.cdiv(num_tokens, 16), k // BLOCK)](
            x, made.q, made.scales, num_tokens, x.stride(0), made.scales.stride(1),
            K=k, BLOCK_T=16, BLOCK_K=BLOCK, num_warps=4, **overlap(x),
        )  # fmt: skip
    return made
