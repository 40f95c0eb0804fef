"""The PyTorch kernel set: the reference that others are tested against, and the CPU path."""

import torch
import torch.nn.functional as F

from engine.inputs import Inputs
from engine.kernels import (
    torch_attention,
    torch_conv,
    torch_delta_rule,
    torch_drafts,
    torch_experts,
    torch_norm,
)
from engine.kernels.interface import Pending
from engine.kernels.torch_linear import Linear
from engine.model.matrix import Matrix
from engine.model.weights import AttentionWeights, DeltaNetWeights, MoeWeights
from transport.wire.layout import CacheLayout


class ReferenceKernels:
    """``engine.kernels.interface.Kernels`` in plain PyTorch; see there for the contracts.

    With ``prefill_block`` 64 a prompt's bits depend neither on its chunks nor on the rest of
    the batch, at the cost of one pass for each 64 tokens.
    """

    def __init__(self, prefill_block: int | None = None) -> None:
        self.prefill_block = prefill_block
        self._linear = Linear()

    def ring_shape(self, layout: CacheLayout) -> tuple[int, int]:
        return layout.num_v_heads, layout.k_dim + layout.v_dim + 1

    def embed(self, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, weight)

    def add_norm(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert pending is None, "this set leaves nothing unadded"
        return hidden, torch_norm.rms_norm(hidden, norm, eps)

    def linear_add(
        self, hidden: torch.Tensor, x: torch.Tensor, weight: Matrix
    ) -> tuple[torch.Tensor, None]:
        return self._linear.add(hidden, x, self._linear.plain(weight)), None

    def deltanet(
        self,
        x: torch.Tensor,
        weights: DeltaNetWeights,
        eps: float,
        conv: torch.Tensor,
        recurrent: torch.Tensor,
        inputs: Inputs,
        layer: int,
    ) -> torch.Tensor:
        heads, _, dim = recurrent.shape[1:]
        sizes = (weights.conv.shape[0], heads * dim, heads, heads)
        projected = self._linear(x, self._linear.plain(weights.in_proj))
        qkv, z, b, a = projected[:, : sum(sizes)].split_with_sizes(sizes, dim=-1)
        out = self._delta_rule(
            self._causal_conv(qkv, weights.conv, conv, inputs, layer),
            b, a, weights, recurrent, inputs, layer,
        )  # fmt: skip
        return torch_norm.gated_rms_norm(out, z.reshape(-1, heads, dim), weights.norm, eps).flatten(
            1
        )

    def attention(
        self,
        x: torch.Tensor,
        weights: AttentionWeights,
        eps: float,
        inv_freq: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        inputs: Inputs,
    ) -> torch.Tensor:
        kv_heads, head_dim = kv.shape[-2:]
        heads = weights.kq_norm.shape[0] - kv_heads
        projected = self._linear(x, self._linear.plain(weights.in_proj)).view(
            x.shape[0], -1, head_dim
        )
        v, kq, gate = projected.split_with_sizes((kv_heads, kv_heads + heads, heads), dim=1)
        rope = inputs.once("rope", lambda: torch_norm.rope_table(inputs.positions, inv_freq))
        kq = torch_norm.norm_rope(kq, weights.kq_norm, rope, eps)
        _write(kq[:, :kv_heads], v, kv, layer, inputs)
        return (self._attend(kq[:, kv_heads:], kv, layer, inputs) * gate.sigmoid()).flatten(1)

    def draft_input(
        self,
        ids: torch.Tensor,
        embed: torch.Tensor,
        hidden: torch.Tensor,
        embedding_norm: torch.Tensor,
        hidden_norm: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        embedded = torch_norm.rms_norm(F.embedding(ids, embed), embedding_norm, eps)
        return torch.cat((embedded, torch_norm.rms_norm(hidden, hidden_norm, eps)), -1)

    def write_kv(
        self,
        x: torch.Tensor,
        weights: AttentionWeights,
        eps: float,
        inv_freq: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        inputs: Inputs,
    ) -> None:
        kv_heads, head_dim = kv.shape[-2:]
        rows = self._linear.plain(weights.in_proj.first(2 * kv_heads * head_dim))
        v, k = self._linear(x, rows).view(x.shape[0], 2, kv_heads, head_dim).unbind(1)
        rope = inputs.once("rope", lambda: torch_norm.rope_table(inputs.positions, inv_freq))
        k = torch_norm.norm_rope(k, weights.kq_norm[:kv_heads], rope, eps)
        _write(k, v, kv, layer, inputs)

    def moe_add(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: MoeWeights,
        top_k: int,
        inputs: Inputs,
    ) -> tuple[torch.Tensor, None]:
        hidden, x = self.add_norm(hidden, pending, norm, eps)
        shared_dim, num_experts = weights.shared_down.shape[1], weights.gate_up.shape[0]
        sizes = (2 * shared_dim, num_experts, 1)
        projected = self._linear(x, self._linear.plain(weights.in_proj))
        shared, router, gate = projected[:, : sum(sizes)].split_with_sizes(sizes, dim=-1)
        shared = torch_experts.silu_mul(shared) * gate.sigmoid()
        hidden = self._linear.add(hidden, shared, self._linear.plain(weights.shared_down))
        chosen, ids = torch_experts.route(router, top_k)
        gate_up, down = self._linear.plain(weights.gate_up), self._linear.plain(weights.down)
        dense = self._linear.suits_experts(x, gate_up, top_k)
        add_experts = self._linear.add_experts if dense else torch_experts.add_experts
        add_experts(hidden, x, chosen, ids, gate_up, down)
        return hidden, None

    def final_norm(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        index: torch.Tensor | None,
    ) -> torch.Tensor:
        assert pending is None, "this set leaves nothing unadded"
        chosen = hidden if index is None else hidden.index_select(0, index)
        return torch_norm.rms_norm(chosen, norm, eps)

    def logits(
        self, hidden: torch.Tensor, lm_head: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        logits = self._linear(hidden, lm_head)
        return logits.float() if out is None else out.copy_(logits)

    def _causal_conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        state: torch.Tensor,
        inputs: Inputs,
        layer: int,
    ) -> torch.Tensor:
        n = inputs.num_decode
        parts = []
        if inputs.drafts:
            ring = inputs.drafts.rings[layer]
            parts.append(torch_drafts.conv_drafts(x[:n], weight, state, ring, inputs.drafts))
        elif inputs.decode:
            parts.append(torch_conv.conv_decode(x[:n], weight, state, inputs.decode))
        if inputs.prefill:
            parts.append(torch_conv.conv_prefill(x[n:], weight, state, inputs.prefill))
        return _joined(parts)

    def _delta_rule(
        self,
        qkv: torch.Tensor,
        b: torch.Tensor,
        a: torch.Tensor,
        weights: DeltaNetWeights,
        state: torch.Tensor,
        inputs: Inputs,
        layer: int,
    ) -> torch.Tensor:
        n = inputs.num_decode
        q, k, v = torch_delta_rule.split_qk(qkv, *state.shape[1:])
        beta = b.float().sigmoid()
        g = F.softplus(a.float() + weights.dt_bias).mul_(weights.neg_exp_a)
        parts = []
        if inputs.decode:
            decode = (q[:n], k[:n], v[:n], g[:n].exp(), beta[:n])
            if inputs.drafts:
                ring = inputs.drafts.rings[layer]
                parts.append(torch_drafts.recurrent_drafts(*decode, state, ring, inputs.drafts))
            else:
                parts.append(torch_delta_rule.recurrent(*decode, state, inputs.decode))
        if inputs.prefill:
            prefill = (q[n:], k[n:], v[n:], g[n:], beta[n:])
            parts.append(torch_delta_rule.chunked(*prefill, state, inputs.prefill))
        return _joined(parts)

    def _attend(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        inputs: Inputs,
    ) -> torch.Tensor:
        n = inputs.num_decode
        k_rows, v_rows = torch_attention.layer_rows(kv, layer)
        parts = []
        if inputs.decode:
            parts.append(torch_attention.attend_decode(q[:n], k_rows, v_rows, inputs.decode))
        if inputs.prefill:
            parts.append(torch_attention.attend_prefill(q[n:], k_rows, v_rows, inputs.prefill))
        return _joined(parts)


def _write(k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, layer: int, inputs: Inputs) -> None:
    n = inputs.num_decode
    k_rows, v_rows = torch_attention.layer_rows(kv, layer)
    if inputs.decode:
        k_rows.index_copy_(0, inputs.decode.new_rows, k[:n])
        v_rows.index_copy_(0, inputs.decode.new_rows, v[:n])
    if inputs.prefill:
        k_rows.index_copy_(0, inputs.prefill.new_rows, k[n:])
        v_rows.index_copy_(0, inputs.prefill.new_rows, v[n:])


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
