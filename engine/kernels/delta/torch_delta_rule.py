"""The gated delta rule in plain PyTorch: token by token, and in blocks of tokens.

A head's state S [k_dim, v_dim] obeys, for each token (Gated DeltaNet, arXiv:2412.06464):

    S <- exp(g) S;   S <- S + k (beta (v - S^T k))^T;   o = S^T q

In a block, with G the running sum of g, D_ij = exp(G_i - G_j) for j <= i, and
A = strictly_lower(beta_i (k_i . k_j) D_ij), the corrected values of all tokens follow from one
triangular solve, after which only the block's start state is sequential:

    (I + A) [U | W] = [beta v | beta exp(G) k];   V = U - W S
    o = (exp(G) q) S + (q k^T * D) V;   S <- exp(G_last) S + (exp(G_last - G) k)^T V

Everything is float32, the state above all: bf16 states lose accuracy on this model.
"""

import torch

from engine.inputs import Rows


def split_qk(
    qkv: torch.Tensor, num_v_heads: int, k_dim: int, v_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unit-length q, k [tokens, v_heads, k_dim] (q also / sqrt(k_dim)), v [tokens, v_heads, v_dim].

    A key head serves ``v_heads / k_heads`` value heads in a row.
    """
    num_tokens = qkv.shape[0]
    value_dim = num_v_heads * v_dim
    qk = qkv[:, :-value_dim].reshape(num_tokens, -1, k_dim).float()
    v = qkv[:, -value_dim:].reshape(num_tokens, num_v_heads, v_dim).float()
    num_k_heads = qk.shape[1] // 2
    scale = qk.square().sum(-1, keepdim=True).add_(1e-6).rsqrt_()
    scale[:, :num_k_heads].mul_(k_dim**-0.5)
    qk = qk * scale
    if num_k_heads != num_v_heads:
        qk = qk.repeat_interleave(num_v_heads // num_k_heads, 1)
    return qk[:, :num_v_heads], qk[:, num_v_heads:], v


def recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    rows: Rows,
) -> torch.Tensor:
    """One token a row -> [rows, v_heads, v_dim]; ``state`` [state slots, …] in place.

    ``decay`` is exp(g); it and ``beta`` are [rows, v_heads].
    """
    s = state.index_select(0, rows.state_slots)
    flat = s.view(-1, *s.shape[2:])
    k_row = k.reshape(flat.shape[0], 1, -1)
    flat.mul_(decay.reshape(-1, 1, 1))
    delta = (v.reshape(flat.shape[0], 1, -1) - torch.bmm(k_row, flat)).mul_(beta.reshape(-1, 1, 1))
    flat.baddbmm_(k_row.transpose(1, 2), delta)
    out = torch.bmm(q.reshape(flat.shape[0], 1, -1), flat)
    state.index_copy_(0, rows.state_slots, s)
    return out.view(v.shape)


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    rows: Rows,
) -> torch.Tensor:
    """Compute chunks back to back -> [tokens, v_heads, v_dim]; ``state`` [state slots, …] in place.

    Blocks are counted from each row's start. ``g`` (log decay) and ``beta`` [tokens, v_heads]. The
    states that the rows' ``keeps`` name are stored as well.
    """
    num_heads, blocks = g.shape[1], rows.blocks
    size = blocks.size

    def blocked(x: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, dim] -> [blocks, heads, size, dim]."""
        x = x.index_select(0, blocks.tokens)
        return x.view(-1, size, num_heads, x.shape[-1]).transpose(1, 2)

    gates = blocked(torch.stack((g, beta), -1))
    if blocks.padding is not None:  # a token without decay and beta changes no state
        gates = gates.masked_fill(blocks.padding[:, None, :, None], 0.0)
    q, k, v, beta = blocked(q), blocked(k), blocked(v), gates[..., 1:]
    total = gates[..., :1].cumsum(2)
    future = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    decay = (total - total.transpose(2, 3)).masked_fill_(future, float("-inf")).exp_()
    grown = total.exp()
    keys = k.transpose(2, 3)
    weighted = k * beta
    system = (weighted @ keys).mul_(decay)
    right = torch.cat((v * beta, weighted * grown), -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    u, w = solved.split_with_sizes((v.shape[-1], k.shape[-1]), -1)
    within = (q @ keys).mul_(decay)
    q = q * grown
    last = total[:, :, -1:]
    k = (k * (last - total).exp()).transpose(2, 3)
    leave = last.exp()

    slots = rows.state_slots.index_select(0, blocks.order)
    s = state.index_select(0, slots)
    if rows.fresh is not None:
        s.masked_fill_(rows.fresh.index_select(0, blocks.order)[:, None, None, None], 0.0)
    kept = rows.kept_blocks
    outputs, begin = [], 0
    for block, num_active in enumerate(blocks.active):
        part = slice(begin, begin + num_active)
        entry = s[:num_active]
        values = u[part] - w[part] @ entry
        outputs.append(q[part] @ entry + within[part] @ values)
        entry.mul_(leave[part]).add_(k[part] @ values)
        for place, slot in kept.get(block, ()):
            state[slot].copy_(s[place])
        begin += num_active
    state.index_copy_(0, slots, s)
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return out.transpose(1, 2).flatten(0, 1).index_select(0, blocks.places)
