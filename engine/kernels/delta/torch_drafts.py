"""DeltaNet of decode rows with drafts, in plain PyTorch (state_ring.py says what the ring holds).

Each sequence has a run of tokens; either its first token or no token is certain. The recurrence
goes token by token, in the operations of rows of one token (torch_conv.conv_decode,
torch_delta_rule.recurrent), except that a subtraction is part of its product: where MKL computes
it, the last bit may differ. Shorter runs are padded with their own last token, and these outputs
are dropped.
"""

import torch
import torch.nn.functional as F

from engine.cache.state_ring import StateRing
from engine.inputs import DraftRows


def conv_drafts(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, ring: StateRing, rows: DraftRows
) -> torch.Tensor:
    """Convolve x [tokens, channels]. The state [state slots, channels, kernel - 1] advances by each
    sequence's pending inputs and its certain tokens; the ring keeps the inputs of the others."""
    slots, kept, certain = rows.state_slots, state.shape[2], rows.num_stored
    history = state.index_select(0, slots)
    for i, pending in rows.pending:
        entry = ring.inputs[:, i].index_select(0, slots).unsqueeze(-1)
        moved = torch.cat((history[..., 1:], entry), -1)
        history = moved if pending is None else torch.where(pending[:, None, None], moved, history)
    runs = rows.filled(x)
    wide = torch.cat((history, runs.transpose(1, 2)), -1)
    state.index_copy_(0, slots, wide[..., certain : kept + certain])
    ring.inputs[:, : runs.shape[1] - certain].index_copy_(0, slots, runs[:, certain:])
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
    """The delta rule token by token -> [tokens, v_heads, v_dim]; arguments and state as in
    ``recurrent``, each sequence's tokens adjacent. An entry of the ring is a head's k, then the
    update's values, then the decay."""
    slots, (k_dim, v_dim), certain = rows.state_slots, state.shape[-2:], rows.num_stored
    s = state.index_select(0, slots)
    flat = s.view(-1, k_dim, v_dim)
    for i, pending in rows.pending:
        entry = ring.updates[:, :, i].index_select(0, slots)
        change = entry[..., -1]
        if pending is not None:
            entry = torch.where(pending[:, None, None], entry, 0.0)
            change = torch.where(pending[:, None], change, 1.0)
        flat.mul_(change.reshape(-1, 1, 1))
        _add(flat, entry[..., :k_dim], entry[..., k_dim : k_dim + v_dim])
    q, k, v, decay, beta = (rows.filled(x).transpose(0, 1) for x in (q, k, v, decay, beta))
    num, values, shape = v.shape[0], [], v.shape[1:]
    outputs = torch.empty(num, *shape, dtype=v.dtype, device=v.device)
    q_rows, k_rows = (x.reshape(num, -1, 1, k_dim).unbind() for x in (q, k))
    v_rows = v.reshape(num, -1, 1, v_dim).unbind()
    decays, betas = (x.reshape(num, -1, 1, 1).unbind() for x in (decay, beta))
    if certain == 0:
        state.index_copy_(0, slots, s)
    for j in range(num):
        flat.mul_(decays[j])
        delta = torch.baddbmm(v_rows[j], k_rows[j], flat, alpha=-1).mul_(betas[j])
        flat.baddbmm_(k_rows[j].transpose(1, 2), delta)
        torch.bmm(q_rows[j], flat, out=outputs[j].view(-1, 1, v_dim))
        if j + 1 == certain:
            state.index_copy_(0, slots, s)
        else:
            values.append(delta.view(shape))
    if values:
        entries = (k[certain:], torch.stack(values), decay[certain:].unsqueeze(-1))
        kept = torch.cat(entries, -1).permute(1, 2, 0, 3)
        ring.updates[:, :, : len(values)].index_copy_(0, slots, kept)
    return rows.emptied(outputs.transpose(0, 1))


def _add(flat: torch.Tensor, k: torch.Tensor, values: torch.Tensor) -> None:
    """Add ``k values^T`` to ``flat`` in place; k and values [sequences, heads, dim]."""
    flat.baddbmm_(k.flatten(0, 1).unsqueeze(2), values.flatten(0, 1).unsqueeze(1))
