"""A differentiable forward over the modules of `Qwen3_5MoeForCausalLM`, shaped for training.

Same mathematics as transformers' own forward, which is written for inference: here all experts
are computed as one wide matrix product and masked by the routing (at eight small experts cheaper
than gathering tokens), and the triangular systems of the delta rule are inverted by matrix
products. A test holds the two forwards equal.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import apply_rotary_pos_emb, l2norm

CHUNK = 32


def unit_lower_inverse(matrix: Tensor) -> Tensor:
    """Inverse of unit lower triangular matrices [..., n, n], n a power of two.

    Blocks of doubling size: inv([[A, 0], [B, C]]) has -C⁻¹ B A⁻¹ in its corner. The closing Newton
    step `X(2 - MX)` leaves the value as it is and carries the exact gradient.
    """
    size = matrix.shape[-1]
    row = torch.arange(size, device=matrix.device)
    with torch.no_grad():
        inverse = torch.eye(size, device=matrix.device, dtype=matrix.dtype).expand_as(matrix)
        block = 1
        while block < size:
            odd = (row // block) % 2 == 1
            same = row[:, None] // (2 * block) == row[None, :] // (2 * block)
            corner = matrix * (same & odd[:, None] & ~odd[None, :])
            inverse = inverse - inverse @ corner @ inverse
            block *= 2
    return 2 * inverse - inverse @ (matrix @ inverse)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Chunked gated delta rule in fp32.

    `q`, `k`, `v` are [batch, heads, tokens, dim]; `g` (log decay) and `beta` [batch, heads,
    tokens]; tokens a multiple of CHUNK. Returns [batch, heads, tokens, dim].
    """
    batch, heads, tokens, dim = v.shape
    q, k, v = (x.reshape(batch, heads, -1, CHUNK, x.shape[-1]) for x in (q, k, v))
    g, beta = (x.reshape(batch, heads, -1, CHUNK) for x in (g, beta))
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    total = g.cumsum(-1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -torch.inf).exp()

    k_beta = k * beta[..., None]
    system = (k_beta @ k.transpose(-1, -2) * decay).tril(-1)
    inverse = unit_lower_inverse(system + torch.eye(CHUNK, device=q.device))
    new_v = inverse @ (v * beta[..., None])
    old_k = inverse @ (k_beta * total.exp()[..., None])
    inside = q @ k.transpose(-1, -2) * decay
    q = q * total.exp()[..., None]
    k = k * (total[..., -1:] - total).exp()[..., None]
    last = total[..., -1].exp()[..., None, None]

    state = torch.zeros(batch, heads, k.shape[-1], dim, device=q.device)
    out = []
    for i in range(tokens // CHUNK):
        update = new_v[:, :, i] - old_k[:, :, i] @ state
        out.append(q[:, :, i] @ state + inside[:, :, i] @ update)
        state = state * last[:, :, i] + k[:, :, i].transpose(-1, -2) @ update
    return torch.cat(out, dim=2)


def delta_net(layer: nn.Module, x: Tensor) -> Tensor:
    """The linear-attention mixer over [batch, tokens, hidden]."""
    batch, tokens, _ = x.shape
    mixed = F.pad(layer.in_proj_qkv(x).transpose(1, 2), (layer.conv_kernel_size - 1, 0))
    mixed = F.silu(F.conv1d(mixed, layer.conv1d.weight, groups=layer.conv_dim)).transpose(1, 2)
    widths = [layer.key_dim, layer.key_dim, layer.value_dim]
    beta = layer.in_proj_b(x).float().sigmoid()
    g = -layer.A_log.float().exp() * F.softplus(layer.in_proj_a(x).float() + layer.dt_bias)
    with torch.autocast(x.device.type, enabled=False):
        q, k, v = (
            part.float().reshape(batch, tokens, -1, dim).transpose(1, 2)
            for part, dim in zip(
                mixed.split(widths, dim=-1),
                (layer.head_k_dim, layer.head_k_dim, layer.head_v_dim),
                strict=True,
            )
        )
        repeat = layer.num_v_heads // layer.num_k_heads
        q, k = (l2norm(part).repeat_interleave(repeat, dim=1) for part in (q, k))
        q = q * layer.head_k_dim**-0.5
        out = delta_rule(q, k, v, g.transpose(1, 2), beta.transpose(1, 2)).transpose(1, 2)
    z = layer.in_proj_z(x).reshape(out.shape)
    return layer.out_proj(layer.norm(out, z).reshape(batch, tokens, -1))


def heads_of(
    layer: nn.Module, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values of [batch, heads, tokens, head_dim], the keys and values repeated
    for the query heads that share them; and the gate, [batch, tokens, heads, head_dim]."""
    shape = (*x.shape[:2], -1, layer.head_dim)
    q, gate = layer.q_proj(x).view(*shape[:3], 2 * layer.head_dim).chunk(2, dim=-1)
    q = layer.q_norm(q).transpose(1, 2)
    k = layer.k_norm(layer.k_proj(x).view(shape)).transpose(1, 2)
    v = layer.v_proj(x).view(shape).transpose(1, 2)
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    groups = layer.num_key_value_groups
    k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
    return q.to(v.dtype), k.to(v.dtype), v, gate


def attention(layer: nn.Module, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gated full-attention mixer over [batch, tokens, hidden], causal without padding."""
    q, k, v, gate = heads_of(layer, x, cos, sin)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out = out.transpose(1, 2) * gate.sigmoid()
    return layer.o_proj(out.reshape(*x.shape[:2], -1))


def experts(block: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The sparse block and its load-balancing loss (one when the experts are used evenly)."""
    router, num = block.gate, block.gate.num_experts
    with torch.autocast(x.device.type, enabled=False):
        probs = F.linear(x.float(), router.weight).softmax(-1)
    top, chosen = probs.topk(router.top_k, dim=-1)
    top = top / top.sum(-1, keepdim=True)
    weights = torch.zeros_like(probs).scatter(-1, chosen, top)
    used = (weights > 0).float().mean(dim=(0, 1)) / router.top_k
    balance = num * (used * probs.mean(dim=(0, 1))).sum()

    wide = F.linear(x, block.experts.gate_up_proj.flatten(0, 1)).unflatten(-1, (num, -1))
    gate, up = wide.chunk(2, dim=-1)
    inner = F.silu(gate) * up * weights[..., None].to(up.dtype)
    routed = F.linear(inner.flatten(-2), block.experts.down_proj.transpose(0, 1).flatten(1))
    shared = block.shared_expert(x) * block.shared_expert_gate(x).sigmoid()
    return routed + shared, balance


def one_layer(
    kind: str, layer: nn.Module, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """One layer over [batch, tokens, hidden], with its load-balancing loss."""
    h = layer.input_layernorm(x)
    if kind == "linear_attention":
        x = x + delta_net(layer.linear_attn, h)
    else:
        x = x + attention(layer.self_attn, h, cos, sin)
    out, balance = experts(layer.mlp, layer.post_attention_layernorm(x))
    return x + out, balance


def hidden_and_balance(
    model: nn.Module, ids: Tensor, run_layer: Callable[..., tuple[Tensor, Tensor]] = one_layer
) -> tuple[Tensor, Tensor]:
    """What lm_head reads, [batch, tokens, hidden] behind the final norm, and the mean
    load-balancing loss; padding on the right.

    `run_layer` may be a compiled `one_layer`: one layer of each kind is compiled and serves
    all of its kind, which takes a fraction of the time of compiling the whole model.
    """
    x = model.model.embed_tokens(ids)
    positions = torch.arange(ids.shape[1], device=ids.device).expand(3, ids.shape[0], -1)
    cos, sin = model.model.rotary_emb(x, positions)
    balances = []
    for kind, layer in zip(model.config.layer_types, model.model.layers, strict=True):
        x, balance = run_layer(kind, layer, x, cos, sin)
        balances.append(balance)
    return model.model.norm(x), torch.stack(balances).mean()


def logits_and_balance(
    model: nn.Module, ids: Tensor, run_layer: Callable[..., tuple[Tensor, Tensor]] = one_layer
) -> tuple[Tensor, Tensor]:
    """Logits [batch, tokens, vocab], and the loss of `hidden_and_balance`."""
    hidden, balance = hidden_and_balance(model, ids, run_layer)
    return model.lm_head(hidden), balance
