"""Routing and experts in plain PyTorch.

    out += sum_{e in top_k} p_e * down_e (silu(gate_e x) * (up_e x)),   p = softmax over the chosen

A softmax over all experts renormalised over the chosen is the same as one over the chosen.
"""

import torch
import torch.nn.functional as F

from engine.model.layers import Activation


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up: [tokens, 2 * dim], gate first -> [tokens, dim]."""
    dim = gate_up.shape[-1] // 2
    return F.silu(gate_up[:, :dim]).mul_(gate_up[:, dim:])


def gate_mul(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """activation(gate) * up, as ``silu_mul``."""
    if activation == "silu":
        return silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)


def route(
    router_logits: torch.Tensor, top_k: int, *, renormalised: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The chosen experts' weights (in the logits' dtype) and ids, both [tokens, top_k]."""
    if not renormalised:
        values, ids = router_logits.float().softmax(-1).topk(top_k)
        return values.to(router_logits.dtype), ids
    values, ids = router_logits.float().topk(top_k)
    return values.softmax(-1).to(router_logits.dtype), ids


def add_experts(
    out: torch.Tensor,
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> None:
    """Add the experts' results to ``out`` [tokens, hidden]. Reads the ids on the host: CPU only."""
    num_tokens, top_k = ids.shape
    if num_tokens == 1:
        for j, expert in enumerate(ids[0].tolist()):
            hidden = silu_mul(F.linear(x, gate_up[expert])).mul_(weights[:, j : j + 1])
            out.addmm_(hidden, down[expert].t())
        return
    flat = ids.reshape(-1)
    order = flat.argsort(stable=True)
    ends = flat.bincount(minlength=gate_up.shape[0]).cumsum(0).to(torch.int32)
    tokens = order // top_k
    sorted_x = x.index_select(0, tokens)
    hidden = silu_mul(F.grouped_mm(sorted_x, gate_up.transpose(1, 2), offs=ends))
    hidden.mul_(weights.reshape(-1, 1).index_select(0, order))
    out.index_add_(0, tokens, F.grouped_mm(hidden, down.transpose(1, 2), offs=ends))
