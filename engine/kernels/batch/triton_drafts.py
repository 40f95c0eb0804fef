# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Bookkeeping of decode steps with drafts, on the GPU: positions of tokens, accepted drafts.

From step to step it keeps for each state slot: ``lengths`` (tokens in the cache), ``pending`` (how
many of the last step's drafts were accepted, state_ring.py), ``drafts`` and the sampler's next
token. The host does not know them in time: it launches a step before it has read the previous one.

Reference: engine/speculation.py, Speculation; test: tests/kernels/batch/test_draft_steps.py.
"""

from dataclasses import dataclass, fields

import torch
import triton
import triton.language as tl

from engine.kernels.triton_overlap import overlap, wait_for_inputs


@dataclass(frozen=True)
class SlotTables:
    """Tables by state slot: ``lengths`` and ``pending`` int32, ``drafts`` int64 [drafts, state
    slots], ``next_token`` int64."""

    lengths: torch.Tensor
    pending: torch.Tensor
    drafts: torch.Tensor
    next_token: torch.Tensor


@dataclass(frozen=True)
class StepRows:
    """The host's description of each row, int32 [rows]: its state slot (-1: padding), the number of
    drafts to verify, the tokens in its cache (-1: as in the tables), the tokens its pages hold."""

    slots: torch.Tensor
    num_drafts: torch.Tensor
    starts: torch.Tensor
    rooms: torch.Tensor


@dataclass(frozen=True)
class Placed:
    """The tokens of a pass, a row's tokens adjacent. A dead token is padding: its ``slots`` int32
    is -1, its ``positions`` int32 -1 and its ``ends`` int32 0. ``held`` int64: the row's state
    slot, 0 for padding. ``ids`` int64: the fed ids. ``sample_slots`` int64: the slot of a sampled
    token, -1 for others; ``sample_positions`` int64: the index of the sampled token.

    A token past the row's pages is dead, but sampled: the host may learn one step late that a
    sequence has got its last token. The results of such a step are dropped."""

    slots: torch.Tensor
    positions: torch.Tensor
    ends: torch.Tensor
    held: torch.Tensor
    ids: torch.Tensor
    sample_slots: torch.Tensor
    sample_positions: torch.Tensor

    @classmethod
    def allocate(cls, num_tokens: int, device: torch.device) -> "Placed":
        kinds = (torch.int32,) * 3 + (torch.int64,) * 4
        return cls(*(torch.zeros(num_tokens, dtype=kind, device=device) for kind in kinds))

    def first(self, num_tokens: int) -> "Placed":
        return Placed(*(getattr(self, each.name)[:num_tokens] for each in fields(self)))


@triton.jit
def _store_placed(
    p_slots, p_positions, p_ends, p_held, p_ids, p_sample_slots, p_sample_positions,
    token, slot, position, live, sampled, id,
):  # fmt: skip
    tl.store(p_slots + token, tl.where(live, slot, -1))
    tl.store(p_positions + token, tl.where(live, position, -1))
    tl.store(p_ends + token, tl.where(live, position + 1, 0))
    tl.store(p_held + token, tl.maximum(slot, 0).to(tl.int64))
    tl.store(p_ids + token, tl.where(live, id, 0))
    tl.store(p_sample_slots + token, tl.where(sampled, slot, -1).to(tl.int64))
    tl.store(p_sample_positions + token, (position + 1).to(tl.int64))


@triton.jit
def _verify_kernel(
    p_row_slots, p_num_drafts, p_starts, p_rooms,
    p_lengths, p_pending, p_drafts, p_next_token,
    p_slots, p_positions, p_ends, p_held, p_ids, p_sample_slots, p_sample_positions,
    num_slots,
    TOKENS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    wait_for_inputs(PDL)
    slot = tl.load(p_row_slots + row)
    held = tl.maximum(slot, 0)
    start = tl.load(p_starts + row)
    length = tl.where(start >= 0, start, tl.load(p_lengths + held))
    if (slot >= 0) & (start >= 0):
        tl.store(p_lengths + slot, start)
        tl.store(p_pending + slot, 0)
    num_drafts, room = tl.load(p_num_drafts + row), tl.load(p_rooms + row)
    for j in tl.static_range(TOKENS):
        if j == 0:
            id = tl.load(p_next_token + held)
        else:
            id = tl.load(p_drafts + (j - 1) * num_slots + held)
        sampled = (slot >= 0) & (j <= num_drafts)
        live = sampled & (length + j < room)
        _store_placed(
            p_slots, p_positions, p_ends, p_held, p_ids, p_sample_slots, p_sample_positions,
            row * TOKENS + j, slot, length + j, live, sampled, id,
        )  # fmt: skip


def place_verified(rows: StepRows, tables: SlotTables, placed: Placed, tokens_each: int) -> None:
    """Place the tokens of a step: each row's next token, then its drafts. A row with a start is
    new: the start becomes its length, and nothing is pending."""
    _verify_kernel[(rows.slots.shape[0],)](
        rows.slots, rows.num_drafts, rows.starts, rows.rooms,
        tables.lengths, tables.pending, tables.drafts, tables.next_token,
        *_pointers(placed), tables.drafts.shape[1],
        TOKENS=tokens_each, num_warps=1, **overlap(placed.ids),
    )  # fmt: skip


@dataclass(frozen=True)
class Uncertain:
    """A step that several workers compute together, which has stored no token in the states. Unless
    ``aborted`` (int32 [1]) is 0, it was not computed, and is undone; ``fed`` int64 [tokens]: the
    ids that were fed to it."""

    aborted: torch.Tensor
    fed: torch.Tensor


@triton.jit
def _accept_kernel(
    p_row_slots, p_num_drafts, p_rooms, p_sampled, p_aborted, p_fed,
    p_lengths, p_pending, p_drafts, p_next_token,
    p_slots, p_positions, p_ends, p_held, p_ids, p_sample_slots, p_sample_positions,
    p_last, p_num_out, p_on_host,
    num_slots,
    TOKENS: tl.constexpr,
    STORED: tl.constexpr,
    ON_HOST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    wait_for_inputs(PDL)
    slot = tl.load(p_row_slots + row)
    held = tl.maximum(slot, 0)
    length = tl.load(p_lengths + held)
    num_drafts = tl.load(p_num_drafts + row)
    num_accepted = tl.zeros([], tl.int32)
    agrees = slot >= 0
    for j in tl.static_range(TOKENS - 1):
        sampled = tl.load(p_sampled + row * TOKENS + j, mask=slot >= 0, other=-1)
        same = sampled == tl.load(p_drafts + j * num_slots + held)
        agrees = agrees & same & (sampled >= 0) & (j < num_drafts)
        num_accepted += agrees.to(tl.int32)
    kept, num_out = slot, num_accepted + 1
    if STORED == 0:
        undone = (slot >= 0) & (tl.load(p_aborted) != 0)
        kept, num_out = tl.where(undone, -1, slot), tl.where(undone, 0, num_out)
        if undone:
            tl.store(p_next_token + slot, tl.load(p_fed + row * TOKENS))
            tl.store(p_pending + slot, 0)
            # The draft layer treats the row as padding: the drafts stay as they were.
            tl.store(p_row_slots + row, kept)
    if kept >= 0:
        next_id = tl.maximum(tl.load(p_sampled + row * TOKENS + num_accepted), 0)
        tl.store(p_next_token + slot, next_id)
        tl.store(p_lengths + slot, length + 1 + num_accepted)
        tl.store(p_pending + slot, num_accepted + 1 - STORED)
    tl.store(p_last + row, (num_accepted + row * TOKENS).to(tl.int64))
    tl.store(p_num_out + row, num_out.to(tl.int64))
    if ON_HOST:
        tl.store(p_on_host + row, num_out.to(tl.int64))
    room = tl.load(p_rooms + row)
    for j in tl.static_range(TOKENS):
        live = (kept >= 0) & (j <= num_accepted) & (length + j < room)
        id = tl.maximum(tl.load(p_sampled + row * TOKENS + j, mask=slot >= 0, other=-1), 0)
        _store_placed(
            p_slots, p_positions, p_ends, p_held, p_ids, p_sample_slots, p_sample_positions,
            row * TOKENS + j, kept, length + j, live, live, id,
        )  # fmt: skip


def accept(
    rows: StepRows,
    sampled: torch.Tensor,
    tables: SlotTables,
    placed: Placed,
    last: torch.Tensor,
    num_out: torch.Tensor,
    tokens_each: int,
    uncertain: Uncertain | None = None,
    on_host: torch.Tensor | None = None,
) -> None:
    """Accept the drafts that equal ``sampled`` int64 [tokens without padding] (-1: none), advance
    the tables, and place the output for the draft layer: at each position the token that follows
    it, dead past the row's pages. ``last`` int64 [rows] receives the index of each row's last
    output token, and ``num_out`` int64 [rows] their number. ``on_host`` int64 [rows], pinned,
    receives the number too, if given: a copy behind the kernel would delay the stream.

    ``uncertain``: the step may have been aborted. Then the tables stay as they were before it, no
    row has output, and ``rows.slots`` is -1 for all rows from now on.
    """
    aborted = uncertain.aborted if uncertain else rows.num_drafts
    fed = uncertain.fed if uncertain else sampled
    assert aborted.dtype == torch.int32
    if on_host is not None:
        assert on_host.dtype == torch.int64
        assert on_host.shape == rows.slots.shape, (on_host.shape, rows.slots.shape)
    _accept_kernel[(rows.slots.shape[0],)](
        rows.slots, rows.num_drafts, rows.rooms, sampled, aborted, fed,
        tables.lengths, tables.pending, tables.drafts, tables.next_token,
        *_pointers(placed), last, num_out, num_out if on_host is None else on_host,
        tables.drafts.shape[1], TOKENS=tokens_each, STORED=int(uncertain is None),
        ON_HOST=on_host is not None, num_warps=1, **overlap(sampled),
    )  # fmt: skip


@triton.jit
def _draft_kernel(
    p_row_slots, p_rooms, p_lengths, p_drafts,
    p_slots, p_positions, p_ends, p_held, p_ids, p_sample_slots, p_sample_positions,
    num_slots,
    PLACE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    wait_for_inputs(PDL)
    slot = tl.load(p_row_slots + row)
    held = tl.maximum(slot, 0)
    position = tl.load(p_lengths + held) + PLACE - 1
    live = (slot >= 0) & (position < tl.load(p_rooms + row))
    id = tl.full([], 0, tl.int64)
    if PLACE > 0:
        id = tl.load(p_drafts + (PLACE - 1) * num_slots + held)
    _store_placed(
        p_slots, p_positions, p_ends, p_held, p_ids, p_sample_slots, p_sample_positions,
        row, slot, position, live, live, id,
    )  # fmt: skip
    # The draft layer guesses the token after next.
    tl.store(p_sample_positions + row, (position + 2).to(tl.int64))


def place_draft(rows: StepRows, tables: SlotTables, placed: Placed, place: int) -> None:
    """Place the tokens from which draft ``place`` (from 0) of each row is made: the draft before
    it, at the position before it. ``sample_positions`` are the draft's own."""
    _draft_kernel[(rows.slots.shape[0],)](
        rows.slots, rows.rooms, tables.lengths, tables.drafts, *_pointers(placed),
        tables.drafts.shape[1], PLACE=place, num_warps=1, **overlap(placed.ids),
    )  # fmt: skip


def _pointers(placed: Placed) -> tuple[torch.Tensor, ...]:
    return tuple(getattr(placed, each.name) for each in fields(placed))
