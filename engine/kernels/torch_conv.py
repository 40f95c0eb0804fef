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
    state.index_copy_(0, rows.state_slots, window[..., 1:])
    return F.silu((window.float() * weight).sum(-1)).to(x.dtype)


def conv_prefill(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, rows: Rows
) -> torch.Tensor:
    """Chunks of any length back to back: x [tokens, channels], state as in ``conv_decode``."""
    taps = weight.t().float()
    outputs = []
    for i, (part, start) in enumerate(zip(x.split_with_sizes(rows.lens), rows.starts, strict=True)):
        slot = rows.state_slots[i : i + 1]
        if start:
            history = state.index_select(0, slot)[0].t()
        else:
            history = part.new_zeros(state.shape[2], state.shape[1])
        padded = torch.cat((history, part))
        wide = padded.float()
        out = wide[: part.shape[0]] * taps[0]
        for j in range(1, taps.shape[0]):
            out.addcmul_(wide[j : j + part.shape[0]], taps[j])
        state.index_copy_(0, slot, padded[part.shape[0] :].t().unsqueeze(0))
        outputs.append(F.silu(out).to(x.dtype))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
