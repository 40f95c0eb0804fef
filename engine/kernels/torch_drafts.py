"""DeltaNet of decode rows with drafts, in plain PyTorch (state_ring.py says what the ring holds).

Each row has a run of tokens, its certain one first; runs may differ in length. Token by token, and
in the same operations as rows of one token (torch_conv.conv_decode, torch_delta_rule.recurrent).
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
    row's pending inputs and its first token, the ring keeps the others."""
    slots = rows.state_slots
    history = state.index_select(0, slots)
    for i, pending in _pending(ring, slots):
        moved = torch.cat((history[pending, :, 1:], ring.inputs[slots[pending], i, :, None]), -1)
        history[pending] = moved
    out = torch.empty_like(x)
    for j, active, tokens in rows.by_place():
        window = torch.cat((history[active], x[tokens].unsqueeze(-1)), -1)
        out[tokens] = F.silu((window.float() * weight).sum(-1)).to(x.dtype)
        history[active] = window[..., 1:]
        if j == 0:
            state.index_copy_(0, slots, history)
        else:
            ring.inputs[slots[active], j - 1] = x[tokens]
    return out


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
    """-> [tokens, v_heads, v_dim]; arguments and state as ``recurrent``'s, each row's tokens in a
    run. An entry of the ring is a head's k, then the update's values, then the decay."""
    slots, (k_dim, v_dim) = rows.state_slots, state.shape[-2:]
    s = state.index_select(0, slots)
    for i, pending in _pending(ring, slots):
        entry = ring.updates[slots[pending], :, i]
        decayed = s[pending] * entry[..., -1, None, None]
        s[pending] = _added(decayed, entry[..., :k_dim], entry[..., k_dim : k_dim + v_dim])
    out = torch.empty_like(v)
    for j, active, tokens in rows.by_place():
        decayed = s[active] * decay[tokens][..., None, None]
        read = _product(k[tokens], decayed)
        values = (v[tokens] - read).mul_(beta[tokens].unsqueeze(-1))
        s[active] = _added(decayed, k[tokens], values)
        out[tokens] = _product(q[tokens], s[active])
        if j == 0:
            state.index_copy_(0, slots, s)
        else:
            entry = torch.cat((k[tokens], values, decay[tokens].unsqueeze(-1)), -1)
            ring.updates[slots[active], :, j - 1] = entry
    return out


def _product(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """[rows, heads, k_dim] times [rows, heads, k_dim, v_dim]."""
    return torch.bmm(x.flatten(0, 1).unsqueeze(1), s.flatten(0, 1)).view(*x.shape[:2], -1)


def _added(s: torch.Tensor, k: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """``s + k values^T``, [rows, heads, k_dim, v_dim]."""
    flat = s.flatten(0, 1)
    columns, row = k.flatten(0, 1).unsqueeze(2), values.flatten(0, 1).unsqueeze(1)
    return flat.baddbmm(columns, row).view(s.shape)


def _pending(ring: StateRing, slots: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """(entry, the rows that have it pending), in order."""
    pending = ring.pending.index_select(0, slots)
    for i in range(int(pending.max())):
        yield i, (pending > i).nonzero().squeeze(1)
