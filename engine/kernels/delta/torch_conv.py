"""Depthwise causal convolution with carried state, in plain PyTorch.

    y_t = silu(sum_j weight[:, j] * x_{t - kernel + 1 + j}),   x before the sequence = 0

The state of a sequence is the last ``kernel - 1`` inputs, oldest first. Sums are float32.
"""

import torch
import torch.nn.functional as F

from engine.inputs import Rows


def conv_decode(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, rows: Rows
) -> torch.Tensor:
    """One token a row: x [rows, channels], state [state slots, channels, kernel - 1] in place."""
    history = state.index_select(0, rows.state_slots)
    window = torch.cat((history, x.unsqueeze(-1)), -1)
    state.index_copy_(0, rows.state_slots, window[..., 1:].contiguous())
    return F.silu((window.float() * weight).sum(-1)).to(x.dtype)


def conv_prefill(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, rows: Rows
) -> torch.Tensor:
    """Chunks of any length back to back: x [tokens, channels], state as in ``conv_decode``. The
    states that the rows' ``keeps`` name are stored as well."""
    taps, kept = weight.t().float(), state.shape[2]
    history = state.index_select(0, rows.state_slots).transpose(1, 2)
    if rows.fresh is not None:
        history = history.masked_fill(rows.fresh[:, None, None], 0.0)
    layout = rows.behind_history(kept)
    inputs = x.new_empty(x.shape[0] + layout.history.shape[0], x.shape[1])
    inputs.index_copy_(0, layout.history, history.flatten(0, 1))
    inputs.index_copy_(0, layout.tokens, x)
    wide = inputs.float()
    # Windows that reach into the chunk before are computed too, and left out below.
    num_windows = inputs.shape[0] - kept
    out = wide[:num_windows] * taps[0]
    for j in range(1, taps.shape[0]):
        out.addcmul_(wide[j : j + num_windows], taps[j])
    last = inputs.index_select(0, layout.last).view(-1, kept, x.shape[1])
    state.index_copy_(0, rows.state_slots, last.transpose(1, 2))
    for row, keep in rows.kept_rows:
        end = sum(rows.lens[:row]) + row * kept + kept + keep.num_tokens
        state[keep.state_slot].copy_(inputs[end - kept : end].t())
    return F.silu(out.index_select(0, layout.tokens - kept)).to(x.dtype)
