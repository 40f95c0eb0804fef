# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Repetition, presence and frequency penalties of rows of logits: torch_sampling.penalised.

    x <- x / repetition if x > 0 else x * repetition    of ids in the prompt or the output
    x <- x - presence * (n > 0) - frequency * n         n: how often the id is in the output

Drafts before a row's token count as output. The tables are read in place, by state slot.

Reference: torch_sampling.penalised; test: tests/kernels/sampling/test_penalties.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs

TILE = 2048


@dataclass(frozen=True)
class PenaltyTables:
    """Tables by state slot: ``penalties`` float32 [state slots, 3] (repetition, presence,
    frequency), and [state slots, ids] ``in_prompt`` bool and ``counts`` int32 of the output."""

    penalties: torch.Tensor
    in_prompt: torch.Tensor
    counts: torch.Tensor


@triton.jit(do_not_specialize=["num_drafts"])
def _penalise_kernel(
    p_logits, p_out, p_penalties, p_in_prompt, p_counts, p_slots, p_drafts, p_num_before,
    logits_stride, out_stride, penalties_stride, table_stride, draft_stride, num_ids, num_drafts,
    ALL_BEFORE: tl.constexpr,
    IN_PLACE: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Penalise one tile of one row."""
    row = tl.program_id(1).to(tl.int64)
    wait_for_inputs(PDL)
    slot = tl.load(p_slots + row).to(tl.int64)
    if slot < 0:
        return
    p_penalties += slot * penalties_stride
    repetition, presence = tl.load(p_penalties), tl.load(p_penalties + 1)
    frequency = tl.load(p_penalties + 2)
    if IN_PLACE and (repetition == 1.0) & (presence == 0.0) & (frequency == 0.0):
        return
    o_id = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = o_id < num_ids
    b_x = tl.load(p_logits + row * logits_stride + o_id, mask=mask, other=0.0)
    b_count = tl.load(p_counts + slot * table_stride + o_id, mask=mask, other=0)
    b_prompt = tl.load(p_in_prompt + slot * table_stride + o_id, mask=mask, other=0) != 0
    num_before = num_drafts
    if not ALL_BEFORE:
        num_before = tl.load(p_num_before + row).to(tl.int32)
    for place in range(num_before):
        b_count += (o_id == tl.load(p_drafts + place * draft_stride + slot)).to(tl.int32)
    b_output = b_count > 0
    b_repeated = tl.where(b_x > 0, tl.div_rn(b_x, repetition), b_x * repetition)
    b_x = tl.where(b_prompt | b_output, b_repeated, b_x)
    b_x -= tl.where(b_output, presence, 0.0)
    b_x -= frequency * b_count.to(tl.float32)
    tl.store(p_out + row * out_stride + o_id, b_x, mask=mask)


def penalise(
    logits: torch.Tensor,
    tables: PenaltyTables,
    slots: torch.Tensor,
    drafts: torch.Tensor | None = None,
    num_before: torch.Tensor | None = None,
    *,
    in_place: bool = False,
) -> torch.Tensor:
    """Penalise ``logits`` float32 [rows, first ids], in new memory or ``in_place``.

    slots int64 [rows]: rows of -1 are undefined, or unchanged if in place. drafts int64 [drafts,
    state slots]: the first ``num_before`` int64 [rows] of a row's slot, or all, precede its token.
    """
    num_rows, num_ids = logits.shape
    counts, in_prompt, penalties = tables.counts, tables.in_prompt, tables.penalties
    assert logits.dtype == penalties.dtype == torch.float32
    assert logits.stride(1) == penalties.stride(1) == 1
    assert num_ids <= counts.shape[1], (logits.shape, counts.shape)
    assert counts.dtype == torch.int32, counts.dtype
    assert counts.is_contiguous()
    assert in_prompt.is_contiguous()
    assert in_prompt.shape == counts.shape
    assert slots.shape == (num_rows,)
    assert num_before is None or (drafts is not None and num_before.is_contiguous())
    assert drafts is None or drafts.stride(1) == 1
    out = logits if in_place else torch.empty((num_rows, num_ids), device=logits.device)
    if num_rows:
        fed = slots if drafts is None else drafts
        _penalise_kernel[(triton.cdiv(num_ids, TILE), num_rows)](
            logits, out, penalties, in_prompt.view(torch.uint8), counts, slots, fed,
            slots if num_before is None else num_before,
            logits.stride(0), out.stride(0), penalties.stride(0), counts.stride(0), fed.stride(0),
            num_ids, 0 if drafts is None else len(drafts),
            ALL_BEFORE=num_before is None, IN_PLACE=in_place, TILE=TILE,
            num_warps=4, enable_fp_fusion=False, **overlap(logits),
        )  # fmt: skip
    return out
