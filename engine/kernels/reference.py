"""The PyTorch kernel set: the reference that others are tested against, and the CPU path.

engine/model/decoder.py composes the blocks (attention, DeltaNet, experts) from the operators here.
"""

import torch
import torch.nn.functional as F

from engine.inputs import Inputs
from engine.kernels.attention import torch_attention
from engine.kernels.delta import torch_conv, torch_delta_rule, torch_drafts
from engine.kernels.dense import torch_norm
from engine.kernels.dense.torch_linear import Linear
from engine.kernels.experts import torch_experts
from engine.kernels.interface import Activation, Pending
from engine.model import decoder
from engine.model.matrix import Matrix
from engine.model.weights import (
    AttentionWeights,
    DeltaNetWeights,
    DenseWeights,
    Experts,
    MoeWeights,
)
from transport.wire.layout import CacheLayout


class ReferenceKernels:
    """``Kernels`` and ``Operators`` of engine/kernels/interface.py in plain PyTorch; see there for
    the contracts.

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
    ) -> tuple[torch.Tensor, Activation]:
        assert pending is None, "this set leaves nothing unadded"
        return hidden, Activation(torch_norm.rms_norm(hidden, norm, eps))

    def linear_add(
        self, hidden: torch.Tensor, x: Activation, weight: Matrix
    ) -> tuple[torch.Tensor, None]:
        return self.add_linear(hidden, x.tensor, weight), None

    def deltanet(
        self,
        x: Activation,
        weights: DeltaNetWeights,
        eps: float,
        conv: torch.Tensor,
        recurrent: torch.Tensor,
        inputs: Inputs,
        layer: int,
    ) -> Activation:
        return Activation(
            decoder.deltanet(self, x.tensor, weights, eps, conv, recurrent, inputs, layer)
        )

    def attention(
        self,
        x: Activation,
        weights: AttentionWeights,
        eps: float,
        inv_freq: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        inputs: Inputs,
    ) -> Activation:
        return Activation(
            decoder.attention(self, x.tensor, weights, eps, inv_freq, kv, layer, inputs)
        )

    def draft_input(
        self,
        ids: torch.Tensor,
        embed: torch.Tensor,
        hidden: torch.Tensor,
        embedding_norm: torch.Tensor,
        hidden_norm: torch.Tensor,
        eps: float,
    ) -> Activation:
        embedded = torch_norm.rms_norm(F.embedding(ids, embed), embedding_norm, eps)
        both = (embedded, torch_norm.rms_norm(hidden, hidden_norm, eps))
        return Activation(torch.cat(both, -1))

    def write_kv(
        self,
        x: Activation,
        weights: AttentionWeights,
        eps: float,
        inv_freq: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        inputs: Inputs,
    ) -> None:
        decoder.attention_kv(self, x.tensor, weights, eps, inv_freq, kv, layer, inputs)

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
        return decoder.moe(self, hidden, x.tensor, weights, top_k), None

    def dense_add(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: DenseWeights,
    ) -> tuple[torch.Tensor, None]:
        hidden, x = self.add_norm(hidden, pending, norm, eps)
        return decoder.dense(self, hidden, x.tensor, weights, eps), None

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
        self,
        hidden: torch.Tensor,
        lm_head: Matrix,
        num_ids: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        logits = self._linear(hidden, self._linear.plain(lm_head)[:num_ids])
        return logits.float() if out is None else out.copy_(logits)

    # ---- operators

    def linear(self, x: torch.Tensor, weight: Matrix) -> torch.Tensor:
        return self._linear(x, self._linear.plain(weight))

    def add_linear(self, into: torch.Tensor, x: torch.Tensor, weight: Matrix) -> torch.Tensor:
        return self._linear.add(into, x, self._linear.plain(weight))

    def causal_conv(
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

    def delta_rule(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        inputs: Inputs,
        layer: int,
    ) -> torch.Tensor:
        n = inputs.num_decode
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

    def store_kv(
        self, k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, layer: int, inputs: Inputs
    ) -> None:
        n = inputs.num_decode
        k_rows, v_rows = torch_attention.layer_rows(kv, layer)
        if inputs.decode:
            k_rows.index_copy_(0, inputs.decode.new_rows, k[:n])
            v_rows.index_copy_(0, inputs.decode.new_rows, v[:n])
        if inputs.prefill:
            k_rows.index_copy_(0, inputs.prefill.new_rows, k[n:])
            v_rows.index_copy_(0, inputs.prefill.new_rows, v[n:])

    def attend(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        inputs: Inputs,
        *,
        window: int | None = None,
        scale: float | None = None,
    ) -> torch.Tensor:
        n, span = inputs.num_decode, torch_attention.Span(window, scale)
        k_rows, v_rows = torch_attention.layer_rows(kv, layer)
        parts = []
        if inputs.decode:
            parts.append(torch_attention.attend_decode(q[:n], k_rows, v_rows, inputs.decode, span))
        if inputs.prefill:
            parts.append(
                torch_attention.attend_prefill(q[n:], k_rows, v_rows, inputs.prefill, span)
            )
        return _joined(parts)

    def add_experts(
        self,
        into: torch.Tensor,
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        gate_up: Experts,
        down: Experts,
    ) -> None:
        assert isinstance(gate_up, Matrix), "packed experts are for the Triton set"
        assert isinstance(down, Matrix)
        plain = self._linear.plain(gate_up), self._linear.plain(down)
        dense = self._linear.suits_experts(x, plain[0], ids.shape[1])
        add = self._linear.add_experts if dense else torch_experts.add_experts
        add(into, x, weights, ids, *plain)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
