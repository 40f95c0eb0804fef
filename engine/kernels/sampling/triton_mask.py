"""Masks the ids that a row must not have: -inf where the row's bit is 0.

logits[row_i, id] <- -inf   where bit id % 32 of bits[i, id // 32] is 0

Reference: torch_sampling.masked; test: tests/kernels/sampling/test_mask.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from engine.upload import upload

WORDS = 64
"""Number of words, of 32 ids each, that a program masks."""


def mask_logits(logits: torch.Tensor, rows: Sequence[int], bits: torch.Tensor) -> None:
    """Mask ``rows`` of ``logits`` [rows, ids] float32 in place; other rows are not touched.

    bits int32 [len(rows), words]; ids past the last word are not touched either.
    """
    num_ids = min(logits.shape[1], bits.shape[1] * 32)
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.stride(1) == 1, logits.stride()
    assert bits.dtype == torch.int32, bits.dtype
    assert bits.is_contiguous()
    assert bits.shape[0] == len(rows), (bits.shape, len(rows))
    index = upload(torch.tensor(rows, dtype=torch.int32), logits.device)
    num_words = triton.cdiv(num_ids, 32)
    _mask_kernel[(triton.cdiv(num_words, WORDS), len(rows))](
        logits, index, bits, logits.stride(0), bits.stride(0), num_ids, WORDS=WORDS, num_warps=4
    )


@triton.jit
def _mask_kernel(
    p_logits, p_rows, p_bits, logits_stride, bits_stride, num_ids, WORDS: tl.constexpr
):
    block, i = tl.program_id(0), tl.program_id(1)
    row = tl.load(p_rows + i).to(tl.int64)
    o_word = block * WORDS + tl.arange(0, WORDS)
    b_word = tl.load(p_bits + i * bits_stride + o_word, mask=o_word * 32 < num_ids, other=0)
    o_bit = tl.arange(0, 32)
    o_id = o_word[:, None] * 32 + o_bit[None, :]
    forbidden = ((b_word[:, None] >> o_bit[None, :]) & 1) == 0
    b_minus = tl.full([WORDS, 32], float("-inf"), tl.float32)
    tl.store(p_logits + row * logits_stride + o_id, b_minus, mask=forbidden & (o_id < num_ids))
