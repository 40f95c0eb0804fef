# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Queries and keys in int8, for attention without a mask (gluon_attention.py).

    k'[j] = k[j] - mean(k);   k[j] ~ k8[j] b[J] + mean(k),   q[i] ~ q8[i] a[i]

A query's scale is its largest number / 127, and so is that of each TILE of keys. Less their mean
over a piece, keys are smaller. What that takes from a query's scores is the same for all keys, so
it changes no weight, and is added to the logarithm of their sum. The idea is SageAttention's
(arXiv 2410.02367).

Reference and test: tests/kernels/attention/test_int8_attention.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.attention import triton_attention_prefill

LOG2_E = tl.constexpr(triton_attention_prefill.LOG2_E)


def quantise_keys(k: torch.Tensor, tile: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """k [heads, keys, dim], whose last dimension is contiguous -> int8 [heads, keys, dim], float32
    scales [heads, keys / tile], and the keys' mean [heads, dim]."""
    heads, num_keys, dim = k.shape
    assert num_keys % tile == 0, (num_keys, tile)
    mean = k.mean(1, dtype=torch.float32)
    q = torch.empty(k.shape, dtype=torch.int8, device=k.device)
    scales = torch.empty(heads, num_keys // tile, dtype=torch.float32, device=k.device)
    _keys_kernel[(num_keys // tile, heads)](
        k, mean, q, scales, k.stride(0), k.stride(1), num_keys, TILE=tile, DIM=dim, num_warps=8
    )
    return q, scales, mean


def quantise_queries(
    q: torch.Tensor, mean: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [heads, queries, dim], contiguous, for keys less their ``mean`` -> int8
    [heads, queries, dim]; float32 [heads, queries]: scales of scores in powers of 2, and what is
    to be added to the natural logarithm of a sum of weights."""
    heads, num_queries, dim = q.shape
    assert q.is_contiguous()
    assert num_queries % _ROWS.value == 0, num_queries
    rounded = torch.empty(q.shape, dtype=torch.int8, device=q.device)
    scales = torch.empty(heads, num_queries, dtype=torch.float32, device=q.device)
    biases = torch.empty_like(scales)
    _queries_kernel[(num_queries // _ROWS.value, heads)](
        q, mean, rounded, scales, biases, dim**-0.5, num_queries, DIM=dim, num_warps=4
    )
    return rounded, scales, biases


_ROWS = tl.constexpr(16)
"""Queries of a program."""


@triton.jit
def _rounded(b_x, b_scale):
    """b_x / b_scale, rounded to the nearest integer."""
    b_x = b_x / b_scale
    return (b_x + tl.where(b_x < 0, -0.5, 0.5)).to(tl.int8)


@triton.jit
def _keys_kernel(
    p_k,
    p_mean,
    p_q,
    p_scales,
    head_stride,
    key_stride,
    num_keys,
    TILE: tl.constexpr,
    DIM: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_d = tl.arange(0, DIM)[None, :]
    o_key = (tile * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    b_k = tl.load(p_k + head * head_stride + o_key * key_stride + o_d).to(tl.float32)
    b_k -= tl.load(p_mean + head * DIM + o_d)
    scale = tl.maximum(tl.max(tl.abs(b_k)), 1e-12) / 127.0
    tl.store(p_q + (head * num_keys + o_key) * DIM + o_d, _rounded(b_k, scale))
    tl.store(p_scales + head * (num_keys // TILE) + tile, scale)


@triton.jit
def _queries_kernel(
    p_q,
    p_mean,
    p_rounded,
    p_scales,
    p_biases,
    scale,
    num_queries,
    DIM: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    o_row = head * num_queries + tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    o_d = tl.arange(0, DIM)[None, :]
    b_q = tl.load(p_q + o_row[:, None] * DIM + o_d).to(tl.float32)
    b_scale = tl.maximum(tl.max(tl.abs(b_q), 1), 1e-12) / 127.0
    tl.store(p_rounded + o_row[:, None] * DIM + o_d, _rounded(b_q, b_scale[:, None]))
    tl.store(p_scales + o_row, b_scale * (scale * LOG2_E))
    tl.store(p_biases + o_row, tl.sum(b_q * tl.load(p_mean + head * DIM + o_d), 1) * scale)
