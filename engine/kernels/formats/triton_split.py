# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A bfloat16 activation as the sum of two e4m3 numbers, for products on FP8 tensor cores.

    x[t, c] = s[t] * (q[t, 0, c] + q[t, 1, c]),   s a power of two with max_c |x / s| in [128, 256)

or with an s for each group of a token's columns, by the group's own maximum.

bfloat16 has 8 significant bits and e4m3 has 4. The first part rounds x / s; the remainder, up to
half a unit of the first part's last place with either sign, has 4 significant bits. The sum is
exact if |x| is at least max / 512, and within max * 2^-17 below. So a weight in e4m3 times both
parts is the product with bfloat16, and no weight has to be converted: dot(w, [q0, q1]^T) takes the
weights from shared memory unchanged. Rows 2t and 2t + 1 of its second operand are token t's parts.

Reference: the formula above, exactly; test: tests/kernels/test_fp8.py, test_shared_functions.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs
from engine.model.matrix import FP8

PARTS = tl.constexpr(2)


@dataclass(frozen=True)
class Split:
    """Activations split in two: q e4m3 [tokens, 2, k] and s float32 [tokens, groups], both
    contiguous; one scale per k / groups columns."""

    q: torch.Tensor
    s: torch.Tensor

    @classmethod
    def empty(cls, num_tokens: int, k: int, groups: int, device: torch.device) -> "Split":
        """Uninitialised memory for a kernel to write."""
        q = torch.empty((num_tokens, PARTS.value, k), dtype=FP8, device=device)
        return cls(q, torch.empty((num_tokens, groups), dtype=torch.float32, device=device))

    @property
    def num_groups(self) -> int:
        return self.s.shape[1]

    def is_of_rows(self, x: torch.Tensor, num_groups: int = 1) -> bool:
        """True if the shapes match x [tokens, k] with ``num_groups`` scales per token."""
        num_tokens, k = x.shape
        shapes = (num_tokens, PARTS.value, k), (num_tokens, num_groups)
        assert self.q.is_contiguous()
        assert self.s.is_contiguous()
        return (self.q.shape, self.s.shape) == shapes


@triton.jit
def _rounded(b_x):
    """Round float32 to the nearest number of e4m3, ties to even; the result is still float32.

    It does not convert to e4m3 and back: ptxas 12.8 then unpacks the wrong register where pairs of
    results are packed again for a store (seen from 4 elements per thread on, for sm_90a).
    """
    b_power = (b_x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    # A unit of the last place, times 1.5 * 2^23.
    b_magic = tl.maximum(b_power, 0.015625) * 1572864.0
    return (b_x + b_magic) - b_magic


@triton.jit
def power_of_two(b_amax):
    """(s, 1 / s) for the largest magnitudes, all float32; s is between 2^-118 and 2^116."""
    b_exponent = (b_amax.to(tl.int32, bitcast=True) >> 23) & 0xFF
    b_exponent = tl.minimum(tl.maximum(b_exponent, 16), 250)
    b_s = ((b_exponent - 7) << 23).to(tl.float32, bitcast=True)
    b_inverse = ((261 - b_exponent) << 23).to(tl.float32, bitcast=True)
    return b_s, b_inverse


@triton.jit
def two_parts(b_scaled):
    """The two e4m3 parts of x / s in float32, with |x / s| below 256."""
    b_first = _rounded(b_scaled)
    return b_first.to(tl.float8e4nv), _rounded(b_scaled - b_first).to(tl.float8e4nv)


@triton.jit
def sum_of_parts(b_y, M: tl.constexpr, T: tl.constexpr):
    """Add each token's adjacent parts: [M, T * PARTS] -> [M, T]."""
    b_first, b_second = tl.split(tl.reshape(b_y, (M, T, PARTS)))
    return b_first + b_second


@triton.jit
def store_split(b_x, p_q, p_s, row, o_k, mask, K: tl.constexpr):
    """Split and store ``b_x`` float32, one row of K columns, with one scale."""
    store_group(b_x, p_q + row * (PARTS * K) + o_k, p_s + row, mask, K)


@triton.jit
def store_group(b_x, p_q, p_s, mask, K: tl.constexpr):
    """Split and store ``b_x`` float32, columns of a row of K with one scale. The scale goes to
    ``p_s``; ``p_q`` are the addresses of the first parts."""
    b_s, b_inverse = power_of_two(tl.max(tl.abs(b_x), axis=0))
    b_first, b_second = two_parts(b_x * b_inverse)
    tl.store(p_q, b_first, mask=mask)
    tl.store(p_q + K, b_second, mask=mask)
    tl.store(p_s, b_s)


@triton.jit
def _split_kernel(
    p_x,
    p_q,
    p_s,
    stride_x,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_k = group * COLUMNS + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < COLUMNS
    wait_for_inputs(PDL)
    b_x = tl.load(p_x + row * stride_x + o_k, mask=mask, other=0.0).to(tl.float32)
    p_q += row * (PARTS * K) + o_k
    store_group(b_x, p_q, p_s + row * tl.num_programs(1) + group, mask, K)


def split_rows(x: torch.Tensor, num_groups: int = 1) -> Split:
    """Split x [tokens, k], rows contiguous, with ``num_groups`` scales per token."""
    num_tokens, k = x.shape
    assert x.stride(1) == 1
    assert k % num_groups == 0, (k, num_groups)
    split, columns = Split.empty(num_tokens, k, num_groups, x.device), k // num_groups
    if num_tokens:
        _split_kernel[(num_tokens, num_groups)](
            x, split.q, split.s, x.stride(0),
            K=k, COLUMNS=columns, BLOCK=triton.next_power_of_2(columns),
            num_warps=8 if num_groups == 1 else 1, **overlap(x),
        )  # fmt: skip
    return split
