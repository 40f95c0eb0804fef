# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What a step leaves in the tables of its state slots, once it is known whether its tokens stay.

A spread step stores the states before its token, and puts the token's update into the ring
(engine/cache/state_ring.py). If it was aborted, the update is not pending and the token is
fed again, so all is as before the step; this holds too for steps that were launched behind it.

Reference: local steps of the tokens that stay; test: tests/kernels/spread/test_spread_model.py.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs


@triton.jit
def _settle_kernel(p_slots, p_fed, p_aborted, p_pending, p_next_token):
    row = tl.program_id(0)
    slot = tl.load(p_slots + row)
    if slot >= 0:
        aborted = tl.load(p_aborted) != 0
        tl.store(p_pending + slot, tl.where(aborted, 0, 1))
        if aborted:
            tl.store(p_next_token + slot, tl.load(p_fed + row))


def settle(
    slots: torch.Tensor,
    fed: torch.Tensor,
    aborted: torch.Tensor,
    pending: torch.Tensor,
    next_token: torch.Tensor,
) -> None:
    """Behind a spread step and its sampling: let its tokens stay if ``aborted`` (int32 [1]) is 0,
    else undo it. ``slots`` int32 [rows] (-1: none) are its state slots, ``fed`` int64 [rows] the
    tokens that it took; ``pending`` int32 and ``next_token`` int64 [state slots] are changed."""
    _settle_kernel[(slots.shape[0],)](slots, fed, aborted, pending, next_token, num_warps=1)


@triton.jit
def _applied_kernel(p_slots, p_pending, PDL: tl.constexpr):
    slot = tl.load(p_slots + tl.program_id(0))
    wait_for_inputs(PDL)
    if slot >= 0:
        tl.store(p_pending + slot, 0)


def applied(slots: torch.Tensor, pending: torch.Tensor) -> None:
    """At the end of a local step, whose layers have all read ``pending``: nothing is pending."""
    _applied_kernel[(slots.shape[0],)](slots, pending, num_warps=1, **overlap(pending))
