"""DeltaNet of decode rows with drafts, in plain PyTorch (state_ring.py says what the ring holds).

Each sequence has a run of as many tokens, its certain one first. The recurrence goes token by token
in the operations of rows of one token (torch_conv.conv_decode, torch_delta_rule.recurrent). Runs of
different lengths are filled up with their own last token, whose numbers are then left out.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from engine.inputs import DraftRows
from engine.kernels.state_ring import StateRing


def conv_drafts(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, ring: StateRing, rows: DraftRows
) -> torch.Tensor:
    """x [tokens, channels] convolved; state [state slots, channels, kernel - 1] moves on by each
    sequence's pending inputs and its first token, the ring keeps the others."""
    slots, kept = rows.state_slots, state.shape[2]
    history = state.index_select(0, slots)
    for i, pending in _pending(ring, slots):
        moved = torch.cat((history[..., 1:], ring.inputs[slots, i].unsqueeze(-1)), -1)
        history = torch.where(pending[:, None, None], moved, history)
    runs = rows.filled(x)
    wide = torch.cat((history, runs.transpose(1, 2)), -1)
    state.index_copy_(0, slots, wide[..., 1 : kept + 1])
    ring.inputs[slots, : runs.shape[1] - 1] = runs[:, 1:]
    windows = wide.unfold(-1, kept + 1, 1).float()
    out = F.silu((windows * weight.unsqueeze(1)).sum(-1)).to(x.dtype)
    return rows.emptied(out.transpose(1, 2))


def recurrent_drafts(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    ring: StateRing,
    rows: DraftRows,
) -> torch.Tensor:
    """-> [tokens, v_heads, v_dim]; arguments and state as ``recurrent``'s, each sequence's tokens
    in a run. An entry of the ring is a head's k, then the update's values, then the decay."""
    slots, (k_dim, v_dim) = rows.state_slots, state.shape[-2:]
    s = state.index_select(0, slots)
    flat = s.view(-1, k_dim, v_dim)
    for i, pending in _pending(ring, slots):
        entry = torch.where(pending[:, None, None], ring.updates[slots, :, i], 0.0)
        change = torch.where(pending[:, None], entry[..., -1], 1.0)
        flat.mul_(change.reshape(-1, 1, 1))
        _add(flat, entry[..., :k_dim], entry[..., k_dim : k_dim + v_dim])
    q, k, v, decay, beta = (rows.filled(x) for x in (q, k, v, decay, beta))
    outputs, values = [], []
    for j in range(v.shape[1]):
        k_row = k[:, j].reshape(-1, 1, k_dim)
        flat.mul_(decay[:, j].reshape(-1, 1, 1))
        delta = v[:, j].reshape(-1, 1, v_dim) - torch.bmm(k_row, flat)
        delta.mul_(beta[:, j].reshape(-1, 1, 1))
        flat.baddbmm_(k_row.transpose(1, 2), delta)
        outputs.append(torch.bmm(q[:, j].reshape(-1, 1, k_dim), flat).view(v[:, j].shape))
        if j == 0:
            state.index_copy_(0, slots, s)
        else:
            values.append(delta.view(v[:, j].shape))
    if values:
        entries = (k[:, 1:], torch.stack(values, 1), decay[:, 1:].unsqueeze(-1))
        ring.updates[slots, :, : len(values)] = torch.cat(entries, -1).transpose(1, 2)
    return rows.emptied(torch.stack(outputs, 1))


def _add(flat: torch.Tensor, k: torch.Tensor, values: torch.Tensor) -> None:
    """``flat + k values^T`` in place; k and values [sequences, heads, dim]."""
    flat.baddbmm_(k.flatten(0, 1).unsqueeze(2), values.flatten(0, 1).unsqueeze(1))


def _pending(ring: StateRing, slots: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """(entry, for each sequence whether it has that one pending), in order."""
    pending = ring.pending.index_select(0, slots)
    for i in range(int(pending.max())):
        yield i, pending > i
