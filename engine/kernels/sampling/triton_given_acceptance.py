"""Drafts accepted with a given probability on CUDA, in place, behind the draw of the target's
choices (triton_sampling.py).

Reference: torch_given_acceptance.py; test: tests/kernels/sampling/test_given_acceptance.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl

from engine.kernels.sampling.philox import ACCEPTANCE_STREAM
from engine.kernels.sampling.triton_sampling import philox, to_uniform

STREAM = tl.constexpr(ACCEPTANCE_STREAM)


def decide_drafts(
    chosen: torch.Tensor,
    on_host: torch.Tensor,
    drafts: torch.Tensor,
    verified: torch.Tensor,
    seeds: torch.Tensor,
    state_slots: torch.Tensor,
    positions: torch.Tensor,
    probability: float,
) -> None:
    """Replace the target's choices by the tokens that verify drafts, in ``chosen`` int64 [rows] and
    in ``on_host`` int64 [rows], pinned; rows of -1 (bad logits) stay.

    ``drafts`` int64 [drafts, state slots]; ``verified`` int64 [rows]: which of its slot's drafts a
    row verifies, -1: none. ``seeds`` int64, a column [state slots] of the settings' table;
    ``state_slots`` int64 [rows]; ``positions`` int64 [rows]: the index of each token.
    """
    num_rows = chosen.shape[0]
    for rows in (on_host, verified, state_slots, positions):
        assert rows.dtype == torch.int64, rows.dtype
        assert rows.shape == (num_rows,), (rows.shape, num_rows)
        assert rows.is_contiguous()
    assert drafts.is_contiguous()
    _decide_kernel[(num_rows,)](
        chosen, on_host, drafts, verified, seeds, state_slots, positions,
        seeds.stride(0), drafts.shape[1], probability, num_warps=1,
    )  # fmt: skip


@triton.jit
def _decide_kernel(
    p_chosen, p_on_host, p_drafts, p_verified, p_seeds, p_slots, p_positions,
    seed_stride,
    num_slots,
    probability,
):  # fmt: skip
    row = tl.program_id(0)
    verified = tl.load(p_verified + row)
    chosen = tl.load(p_chosen + row)
    if (verified < 0) | (chosen < 0):
        return
    slot = tl.load(p_slots + row)
    draft = tl.load(p_drafts + verified * num_slots + slot)
    seed = tl.load(p_seeds + slot * seed_stride)
    position = tl.load(p_positions + row)
    zero = tl.full([], 0, tl.uint32)
    word, _, _, _ = philox(
        zero,
        position.to(tl.uint32),
        (position >> 32).to(tl.uint32),
        zero + STREAM,
        seed.to(tl.uint32),
        (seed >> 32).to(tl.uint32),
    )
    rejected = tl.where(chosen == draft, tl.where(draft > 0, draft - 1, 1), chosen)
    id = tl.where(to_uniform(word) < probability, draft, rejected)
    tl.store(p_chosen + row, id)
    tl.store(p_on_host + row, id)
