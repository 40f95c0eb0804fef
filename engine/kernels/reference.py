"""The PyTorch kernel set: the truth that others are tested against, and the CPU path."""

import torch
import torch.nn.functional as F

from engine.inputs import Inputs
from engine.kernels import torch_attention, torch_conv, torch_delta_rule, torch_experts, torch_norm


class ReferenceKernels:
    """``engine.kernels.interface.Kernels`` in plain PyTorch; see there for the contracts.

    With ``prefill_block`` 64 a prompt's bits depend neither on its chunks nor on its company, at
    the price of one pass for each 64 tokens.
    """

    def __init__(self, prefill_block: int | None = None) -> None:
        self.prefill_block = prefill_block

    rms_norm = staticmethod(torch_norm.rms_norm)
    gated_rms_norm = staticmethod(torch_norm.gated_rms_norm)
    norm_rope = staticmethod(torch_norm.norm_rope)
    rope_table = staticmethod(torch_norm.rope_table)
    silu_mul = staticmethod(torch_experts.silu_mul)

    def causal_conv(
        self, x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, inputs: Inputs
    ) -> torch.Tensor:
        n = inputs.num_decode
        parts = []
        if inputs.decode:
            parts.append(torch_conv.conv_decode(x[:n], weight, state, inputs.decode))
        if inputs.prefill:
            parts.append(torch_conv.conv_prefill(x[n:], weight, state, inputs.prefill))
        return _joined(parts)

    def delta_rule(
        self,
        qkv: torch.Tensor,
        b: torch.Tensor,
        a: torch.Tensor,
        neg_exp_a: torch.Tensor,
        dt_bias: torch.Tensor,
        state: torch.Tensor,
        inputs: Inputs,
    ) -> torch.Tensor:
        n = inputs.num_decode
        q, k, v = torch_delta_rule.split_qk(qkv, *state.shape[1:])
        beta = b.float().sigmoid()
        g = F.softplus(a.float() + dt_bias).mul_(neg_exp_a)
        parts = []
        if inputs.decode:
            decode = (q[:n], k[:n], v[:n], g[:n].exp(), beta[:n])
            parts.append(torch_delta_rule.recurrent(*decode, state, inputs.decode))
        if inputs.prefill:
            prefill = (q[n:], k[n:], v[n:], g[n:], beta[n:])
            parts.append(torch_delta_rule.chunked(*prefill, state, inputs.prefill))
        return _joined(parts)

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        inputs: Inputs,
    ) -> torch.Tensor:
        n = inputs.num_decode
        k_rows, v_rows = torch_attention.layer_rows(kv, layer)
        parts = []
        if inputs.decode:
            k_rows.index_copy_(0, inputs.decode.new_rows, k[:n])
            v_rows.index_copy_(0, inputs.decode.new_rows, v[:n])
            parts.append(torch_attention.attend_decode(q[:n], k_rows, v_rows, inputs.decode))
        if inputs.prefill:
            k_rows.index_copy_(0, inputs.prefill.new_rows, k[n:])
            v_rows.index_copy_(0, inputs.prefill.new_rows, v[n:])
            parts.append(torch_attention.attend_prefill(q[n:], k_rows, v_rows, inputs.prefill))
        return _joined(parts)

    def add_experts(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        router_logits: torch.Tensor,
        top_k: int,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> None:
        weights, ids = torch_experts.route(router_logits, top_k)
        torch_experts.add_experts(out, x, weights, ids, gate_up, down)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
