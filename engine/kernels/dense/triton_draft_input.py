# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The input of the draft layer's first product: two norms side by side, in one pass.

    y_t = [e_t / rms(e_t) * w_e, h_t / rms(h_t) * w_h],   e_t = embed[ids_t]

Computed in float32. Four kernels of a few KB each would take longer than the product's weights.

Reference: reference.py, draft_input; test: tests/kernels/dense/test_draft_input.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs


@triton.jit
def _draft_input_kernel(
    p_ids,
    p_embed,
    p_hidden,
    p_embedding_norm,
    p_hidden_norm,
    p_y,
    eps,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (t, 0) norms token t's embedding, program (t, 1) its hidden state."""
    token, half = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, BLOCK)
    mask = dims < DIM
    if half == 0:
        b_weight = tl.load(p_embedding_norm + dims, mask=mask, other=0.0)
        wait_for_inputs(PDL)
        id = tl.load(p_ids + token).to(tl.int64)
        b_x = tl.load(p_embed + id * DIM + dims, mask=mask, other=0.0).to(tl.float32)
    else:
        b_weight = tl.load(p_hidden_norm + dims, mask=mask, other=0.0)
        wait_for_inputs(PDL)
        b_x = tl.load(p_hidden + token * DIM + dims, mask=mask, other=0.0).to(tl.float32)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, axis=0) / DIM + eps) * b_weight
    p_y += (2 * token + half) * DIM
    tl.store(p_y + dims, b_y.to(p_y.dtype.element_ty), mask=mask)


def draft_input(
    ids: torch.Tensor,
    embed: torch.Tensor,
    hidden: torch.Tensor,
    embedding_norm: torch.Tensor,
    hidden_norm: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Norm and join -> [tokens, 2 * dim], of ids [tokens] (integers), embed [ids, dim] and hidden
    [tokens, dim]; the norms [dim] are float32, already ``1 + w``."""
    num_tokens, dim = hidden.shape
    assert ids.shape == (num_tokens,), (ids.shape, hidden.shape)
    assert embed.shape[1] == dim, (embed.shape, hidden.shape)
    assert embedding_norm.shape == hidden_norm.shape == (dim,)
    assert embedding_norm.dtype == hidden_norm.dtype == torch.float32
    assert embed.dtype == hidden.dtype
    assert all(t.is_contiguous() for t in (ids, embed, hidden, embedding_norm, hidden_norm))
    y = torch.empty((num_tokens, 2 * dim), dtype=hidden.dtype, device=hidden.device)
    if num_tokens:
        _draft_input_kernel[(num_tokens, 2)](
            ids, embed, hidden, embedding_norm, hidden_norm, y, eps,
            DIM=dim, BLOCK=triton.next_power_of_2(dim),
            num_warps=8 if num_tokens <= 256 else 4, **overlap(hidden),
        )  # fmt: skip
    return y
