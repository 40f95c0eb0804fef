# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The start of a decode step: positions of its rows, the tokens they feed, and their embedding.

PyTorch needs eight kernels for it, and none of them starts while its predecessor runs
(triton_overlap.py).

Reference: indexing of the tables in PyTorch; test: tests/kernels/batch/test_step_start.py.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs

PAGES = 1024
"""Pages of a block table that a program copies."""


@dataclass(frozen=True)
class Started:
    """The rows of a step. ``held`` int64 [rows]: the state slot, 0 for padding. ``positions`` int32
    [rows]: of the fed tokens, -1 for padding. ``ends`` int64 [rows]. ``tables``: as ``row_tables``
    makes them."""

    held: torch.Tensor
    positions: torch.Tensor
    ends: torch.Tensor
    tables: torch.Tensor


@triton.jit
def _copy_table(p_from, p_to, end, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Copy a program's block of a row's table, up to the page of the last token."""
    o_page = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = o_page < tl.cdiv(end, PAGE)
    tl.store(p_to + o_page, tl.load(p_from + o_page, mask=mask, other=0), mask=mask)


@triton.jit(do_not_specialize=["width"])
def _start_kernel(
    p_slots,
    p_ends,
    p_next_token,
    p_tables,
    p_held,
    p_positions,
    p_wide_ends,
    p_fed,
    p_row_tables,
    width,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    held, end = tl.maximum(tl.load(p_slots + row), 0).to(tl.int64), tl.load(p_ends + row)
    if tl.program_id(1) == 0:
        tl.store(p_held + row, held)
        tl.store(p_positions + row, end - 1)
        tl.store(p_wide_ends + row, end.to(tl.int64))
        tl.store(p_fed + row, tl.load(p_next_token + held))
    _copy_table(p_tables + held * width, p_row_tables + row * width, end, PAGE, BLOCK)


def start_step(
    slots: torch.Tensor,
    ends: torch.Tensor,
    next_token: torch.Tensor,
    tables: torch.Tensor,
    page_size: int,
    fed: torch.Tensor,
) -> Started:
    """Start a step of the rows ``slots`` (-1: padding), which have ``ends`` tokens after the step
    (0 for padding), both int32 [rows]. ``fed`` int64 [rows] receives their ``next_token`` int64
    [state slots]; tables int32 [state slots, pages]."""
    num_rows, (num_slots, width) = slots.shape[0], tables.shape
    assert slots.dtype == ends.dtype == tables.dtype == torch.int32
    assert next_token.dtype == fed.dtype == torch.int64
    assert ends.shape == fed.shape == (num_rows,)
    assert next_token.shape == (num_slots,)
    assert all(t.is_contiguous() for t in (slots, ends, next_token, tables, fed))
    started = Started(
        torch.empty_like(fed),
        torch.empty_like(ends),
        torch.empty_like(fed),
        tables.new_empty(num_rows, width),
    )
    _start_kernel[(num_rows, triton.cdiv(width, PAGES))](
        slots, ends, next_token, tables, started.held, started.positions, started.ends, fed,
        started.tables, width, PAGE=page_size, BLOCK=PAGES, num_warps=4, **overlap(slots),
    )  # fmt: skip
    return started


@triton.jit(do_not_specialize=["width"])
def _tables_kernel(
    p_tables,
    p_held,
    p_ends,
    p_row_tables,
    width,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    held, end = tl.load(p_held + row), tl.load(p_ends + row)
    _copy_table(p_tables + held * width, p_row_tables + row * width, end, PAGE, BLOCK)


def row_tables(
    tables: torch.Tensor,
    held: torch.Tensor,
    ends: torch.Tensor,
    page_size: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gather the block tables [rows, pages] of the state slots ``held`` int64 [rows] from
    ``tables`` int32 [state slots, pages]: each up to the page of the last of ``ends`` int32 [rows]
    tokens, undefined past it."""
    num_rows, width = held.shape[0], tables.shape[1]
    assert (tables.dtype, held.dtype, ends.dtype) == (torch.int32, torch.int64, torch.int32)
    assert ends.shape == (num_rows,)
    assert all(t.is_contiguous() for t in (tables, held, ends))
    if out is None:
        out = tables.new_empty(num_rows, width)
    assert out.shape == (num_rows, width)
    assert out.is_contiguous()
    _tables_kernel[(num_rows, triton.cdiv(width, PAGES))](
        tables, held, ends, out, width, PAGE=page_size, BLOCK=PAGES, num_warps=4,
        **overlap(tables),
    )  # fmt: skip
    return out


@triton.jit
def _embed_kernel(p_ids, p_embed, p_x, DIM: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    mask = dims < DIM
    wait_for_inputs(PDL)
    b_x = tl.load(p_embed + tl.load(p_ids + token).to(tl.int64) * DIM + dims, mask=mask)
    tl.store(p_x + token * DIM + dims, b_x, mask=mask)


def embed(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``weight[ids]`` [tokens, dim] of ids [tokens] and weight [ids, dim]."""
    (num_tokens,), dim = ids.shape, weight.shape[1]
    assert ids.is_contiguous()
    assert weight.is_contiguous()
    x = torch.empty((num_tokens, dim), dtype=weight.dtype, device=weight.device)
    if num_tokens:
        _embed_kernel[(num_tokens,)](
            ids, weight, x, DIM=dim, BLOCK=triton.next_power_of_2(dim), num_warps=4,
            **overlap(weight),
        )  # fmt: skip
    return x
