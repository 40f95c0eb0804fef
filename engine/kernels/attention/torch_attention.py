"""Paged causal attention with grouped heads, in plain PyTorch.

    o_i = sum_{i - window < j <= i} softmax_j(q_i . k_j * scale) v_j

K and V of a token lie in its page; a group of ``heads / kv_heads`` query heads shares one pair.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.inputs import Rows


@dataclass(frozen=True)
class Span:
    """The last ``window`` tokens (None: all), and the ``scale`` (None: ``head_dim ** -0.5``)."""

    window: int | None = None
    scale: float | None = None


EVERYTHING = Span()


def layer_rows(kv: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of ``layer`` as [rows, kv_heads, head_dim], which ``Rows.context_rows`` indexes."""
    page_size = kv.shape[3]
    rows = kv.view(-1, *kv.shape[4:])
    return rows[2 * layer * page_size :], rows[(2 * layer + 1) * page_size :]


def attend_decode(
    q: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor, rows: Rows, span: Span = EVERYTHING
) -> torch.Tensor:
    """One query a row over its context: q [rows, heads, head_dim] -> the same shape."""
    num_rows, _, head_dim = q.shape
    context, mask = rows.context(span.window)
    index, shape = context.reshape(-1), (*context.shape, *k_rows.shape[1:])
    k = k_rows.index_select(0, index).view(shape).transpose(1, 2)
    v = v_rows.index_select(0, index).view(shape).transpose(1, 2)
    grouped = q.view(num_rows, k.shape[1], -1, head_dim)
    out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=span.scale)
    return out.reshape(q.shape)


def attend_prefill(
    q: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor, rows: Rows, span: Span = EVERYTHING
) -> torch.Tensor:
    """Chunks back to back, each over its cached prefix and itself: q [tokens, heads, head_dim]."""
    outputs = []
    num_groups = q.shape[1] // k_rows.shape[1]
    for i, (part, start) in enumerate(zip(q.split_with_sizes(rows.lens), rows.starts, strict=True)):
        end = start + part.shape[0]
        first = 0 if span.window is None else max(0, start + 1 - span.window)
        index = rows.context_rows[i, first:end]
        k = k_rows.index_select(0, index).transpose(0, 1)
        v = v_rows.index_select(0, index).transpose(0, 1)
        if num_groups > 1:
            k, v = k.repeat_interleave(num_groups, 0), v.repeat_interleave(num_groups, 0)
        queries = torch.arange(start, end, device=q.device).unsqueeze(1)
        positions = torch.arange(first, end, device=q.device)
        visible = positions <= queries
        if span.window is not None:
            visible &= positions > queries - span.window
        out = F.scaled_dot_product_attention(
            part.transpose(0, 1).unsqueeze(0),
            k.unsqueeze(0),
            v.unsqueeze(0),
            attn_mask=visible,
            scale=span.scale,
        )
        outputs.append(out[0].transpose(0, 1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
