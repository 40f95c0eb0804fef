"""A decoder of any family, text only: the whole forward pass in one file.

    hidden = embed(ids)
    each layer:  hidden += mixer(norm(hidden));  hidden += mlp(norm(hidden))
    mixer: Gated DeltaNet, or causal attention
    mlp:   mixture of experts, or dense
    logits = lm_head(norm(hidden))

``Decoder.forward`` is this loop over the layers of ``ModelConfig.layers``. ``attention``,
``deltanet``, ``moe`` and ``dense`` below it are the blocks, in operators of PyTorch: the reference
kernel set computes them as they stand here. Another set computes the same blocks in its own way,
fused (engine/kernels/interface.py).

Source: the released checkpoints, and transformers' classes, which the tests compare with.
decoder_weights.py says which checkpoint tensor fills which weight. What the checkpoint stores as
``w`` for use as ``1 + w``, or as ``A_log`` for use as ``-exp(A_log)``, is stored here in the form
in which it is used (``prepare``).
"""

from collections.abc import Generator

import torch
import torch.nn.functional as F

from engine.inputs import Inputs
from engine.kernels.delta.torch_delta_rule import split_qk
from engine.kernels.dense.torch_norm import gated_rms_norm, norm_rope, rms_norm, rope_table, rotate
from engine.kernels.experts.torch_experts import gate_mul, route, silu_mul
from engine.kernels.interface import Activation, Kernels, Operators, Pending
from engine.loading.plan import Plan
from engine.model.builder import WeightBuilder
from engine.model.config import ModelConfig
from engine.model.decoder_weights import DecoderWeights
from engine.model.weights import (
    AttentionWeights,
    DeltaNetWeights,
    DenseWeights,
    LayerWeights,
    MoeWeights,
)
from transport.copy.tensors import CacheTensors


class Decoder:
    """Weights of one model and its forward pass; stateless, the cache is passed in.

    ``plan`` tells the loader where each checkpoint tensor goes; call ``prepare`` once after they
    are all in. ``dtype`` is the compute dtype; norms and gates' parameters are float32.
    ``num_bytes``: what the weights take.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self._ring_window = config.ring_window
        self.plan = Plan(
            ignored=frozenset({"lm_head.weight"} if config.tie_word_embeddings else ())
        )
        new = WeightBuilder(self.plan, config.quantization, dtype, device)
        self.weights = DecoderWeights(config, new, device).allocate()
        self.num_bytes = new.num_bytes

    @torch.inference_mode()
    def prepare(self) -> None:
        """Turn stored parameters into the form the forward pass uses, in place."""
        norms = [self.weights.norm]
        for layer in self.weights.layers:
            norms += layer.norms
            if isinstance(layer.mixer, DeltaNetWeights):
                layer.mixer.neg_exp_a.exp_().neg_()
        if mtp := self.weights.mtp:
            norms += [mtp.embedding_norm, mtp.hidden_norm, mtp.norm, *mtp.layer.norms]
        for norm in norms if self.config.plus_one_norms else []:
            norm.add_(1.0)

    def forward(
        self,
        inputs: Inputs,
        ids: torch.Tensor,
        cache: CacheTensors,
        kernels: Kernels,
        *,
        every_token: bool = False,
    ) -> Generator[None, None, torch.Tensor]:
        """Run ``ids`` [tokens] through all layers -> normed hidden [sampled rows, hidden], or
        [tokens, hidden] with ``every_token``. Yields behind each layer.

        Updates the pages and state slots of the rows in ``inputs``.
        """
        weights, eps = self.weights, self.config.rms_norm_eps
        hidden, pending = self._embedded(ids, kernels), None
        deltanet = attention = windowed = 0
        for layer in weights.layers:
            mixer, mlp = layer.mixer, layer.mlp
            hidden, x = kernels.add_norm(hidden, pending, layer.input_norm, eps)
            if isinstance(mixer, DeltaNetWeights):
                conv, recurrent = cache.conv[:, deltanet], cache.recurrent[:, deltanet]
                mixed = kernels.deltanet(x, mixer, eps, conv, recurrent, inputs, deltanet)
                deltanet += 1
            elif mixer.window is not None and mixer.window == self._ring_window:
                mixed = kernels.attention(
                    x, mixer, eps, mixer.inv_freq, cache.window_pages, windowed, inputs.windowed
                )
                windowed += 1
            else:
                mixed = kernels.attention(
                    x, mixer, eps, mixer.inv_freq, cache.kv, attention, inputs
                )
                attention += 1
            hidden, pending = self._add_mixed(hidden, mixed, layer, kernels)
            if isinstance(mlp, MoeWeights):
                hidden, pending = kernels.moe_add(
                    hidden, pending, layer.post_norm, eps, mlp, mlp.top_k, inputs
                )
            else:
                hidden, pending = kernels.dense_add(hidden, pending, layer.post_norm, eps, mlp)
            yield
        index = inputs.sample_index
        every = every_token or index.shape[0] == hidden.shape[0]
        return kernels.final_norm(hidden, pending, weights.norm, eps, None if every else index)

    def _embedded(self, ids: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        hidden, scale = kernels.embed(ids, self.weights.embed), self.config.embedding_scale
        # Rounded to the compute dtype first, as in training.
        return hidden if scale == 1.0 else hidden * torch.tensor(scale, dtype=hidden.dtype)

    def _add_mixed(
        self, hidden: torch.Tensor, mixed: Activation, layer: LayerWeights, kernels: Kernels
    ) -> tuple[torch.Tensor, Pending]:
        """Add the projection of a mixer's result, with its bias, and normed if there is a norm."""
        mixer, norm, eps = layer.mixer, layer.mixer_norm, self.config.rms_norm_eps
        bias = mixer.out_bias if isinstance(mixer, AttentionWeights) else None
        if norm is None:
            hidden, pending = kernels.linear_add(hidden, mixed, mixer.out_proj)
            return hidden if bias is None else hidden + bias, pending
        start = torch.zeros_like(hidden) if bias is None else bias.expand_as(hidden).contiguous()
        projected, pending = kernels.linear_add(start, mixed, mixer.out_proj)
        _, normed = kernels.add_norm(projected, pending, norm, eps)
        return hidden + normed.tensor, None

    def logits(
        self,
        hidden: torch.Tensor,
        num_ids: int,
        kernels: Kernels,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[rows, hidden] -> float32 logits [rows, num_ids] of the first ``num_ids`` ids; in
        ``out`` where given."""
        return kernels.logits(hidden, self.weights.lm_head, num_ids, out)


def attention(
    ops: Operators,
    x: torch.Tensor,
    weights: AttentionWeights,
    eps: float,
    inv_freq: torch.Tensor,
    kv: torch.Tensor,
    layer: int,
    inputs: Inputs,
) -> torch.Tensor:
    """attend(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate) -> [tokens, heads * head_dim].

    q, k, v and gate are ``x @ in_proj.T + bias``, in heads; k and v go to the pages first. Norm,
    gate and bias: of models that have them. Arguments as in ``Kernels.attention``.
    """
    kv_heads, head_dim = kv.shape[-2:]
    heads = weights.out_proj.shape[1] // head_dim
    projected = ops.linear(x, weights.in_proj)
    if weights.bias is not None:
        projected = projected + weights.bias
    projected = projected.view(x.shape[0], -1, head_dim)
    gates = heads if weights.gated else 0
    v, kq, gate = projected.split_with_sizes((kv_heads, kv_heads + heads, gates), dim=1)
    rope = _rope(inputs, inv_freq)
    if weights.normed:
        kq = norm_rope(kq, weights.kq_norm, rope, eps)
    else:
        kq = rotate(kq.float(), rope).to(kq.dtype)
    k, q = kq[:, :kv_heads], kq[:, kv_heads:]
    ops.store_kv(k, v, kv, layer, inputs)
    attended = ops.attend(q, kv, layer, inputs, window=weights.window, scale=weights.scale)
    return (attended * gate.sigmoid() if weights.gated else attended).flatten(1)


def _rope(inputs: Inputs, inv_freq: torch.Tensor) -> torch.Tensor:
    """The rotations of a pass's positions; layers with the same frequencies share them."""
    return inputs.once(
        f"rope {inv_freq.data_ptr()}", lambda: rope_table(inputs.positions, inv_freq)
    )


def attention_kv(
    ops: Operators,
    x: torch.Tensor,
    weights: AttentionWeights,
    eps: float,
    inv_freq: torch.Tensor,
    kv: torch.Tensor,
    layer: int,
    inputs: Inputs,
) -> None:
    """Store only the k and v of ``attention``, of a draft layer: normed, without a bias."""
    assert weights.bias is None, "no draft layer has a bias"
    kv_heads, head_dim = kv.shape[-2:]
    rows = weights.in_proj.first(2 * kv_heads * head_dim)
    v, k = ops.linear(x, rows).view(x.shape[0], 2, kv_heads, head_dim).unbind(1)
    rope = _rope(inputs, inv_freq)
    k = norm_rope(k, weights.kq_norm[:kv_heads], rope, eps)
    ops.store_kv(k, v, kv, layer, inputs)


def deltanet(
    ops: Operators,
    x: torch.Tensor,
    weights: DeltaNetWeights,
    eps: float,
    conv: torch.Tensor,
    recurrent: torch.Tensor,
    inputs: Inputs,
    layer: int,
) -> torch.Tensor:
    """norm(delta_rule(q, k, v, g, beta)) * silu(z) -> [tokens, v_heads * v_dim].

        q, k, v = split(silu(causal_conv(qkv))), q and k of unit length
        g = -exp(A) * softplus(a + dt_bias);   beta = sigmoid(b)

    qkv, z, b and a are ``x @ in_proj.T``. Arguments as in ``Kernels.deltanet``.
    """
    heads, k_dim, v_dim = recurrent.shape[1:]
    sizes = (weights.conv.shape[0], heads * v_dim, heads, heads)
    projected = ops.linear(x, weights.in_proj)
    qkv, z, b, a = projected[:, : sum(sizes)].split_with_sizes(sizes, dim=-1)
    qkv = ops.causal_conv(qkv, weights.conv, conv, inputs, layer)
    q, k, v = split_qk(qkv, heads, k_dim, v_dim)
    beta = b.float().sigmoid()
    g = F.softplus(a.float() + weights.dt_bias).mul_(weights.neg_exp_a)
    out = ops.delta_rule(q, k, v, g, beta, recurrent, inputs, layer)
    return gated_rms_norm(out, z.reshape(-1, heads, v_dim), weights.norm, eps).flatten(1)


def moe(
    ops: Operators, hidden: torch.Tensor, x: torch.Tensor, weights: MoeWeights, top_k: int
) -> torch.Tensor:
    """hidden + sigmoid(shared gate) * shared_expert(x) + Σ_e p_e * expert_e(x) -> [tokens, hidden].

    The sum is over the ``top_k`` experts that the router chooses; p is the softmax of their logits,
    or of all experts' logits if it is not renormalised. The shared expert's gate and up, the
    router's logits and the shared gate's are ``x @ in_proj.T``.
    """
    shared_dim, num_experts = weights.shared_down.shape[1], weights.gate_up.shape[0]
    sizes = (2 * shared_dim, num_experts, int(shared_dim > 0))
    projected = ops.linear(x, weights.in_proj)
    shared, router, gate = projected[:, : sum(sizes)].split_with_sizes(sizes, dim=-1)
    if shared_dim:
        shared = silu_mul(shared) * gate.sigmoid()
        hidden = ops.add_linear(hidden, shared, weights.shared_down)
    else:
        hidden = hidden.clone()
    chosen, ids = route(router, top_k, renormalised=weights.renormalised)
    ops.add_experts(hidden, x, chosen, ids, weights.gate_up, weights.down)
    return hidden


def dense(
    ops: Operators, hidden: torch.Tensor, x: torch.Tensor, weights: DenseWeights, eps: float
) -> torch.Tensor:
    """hidden + down(activation(gate) * up) -> [tokens, hidden], normed before the sum if there is
    an ``out_norm``; gate and up are ``x @ gate_up.T``."""
    activated = gate_mul(ops.linear(x, weights.gate_up), weights.activation)
    if weights.out_norm is None:
        return ops.add_linear(hidden, activated, weights.down)
    return hidden + rms_norm(ops.linear(activated, weights.down), weights.out_norm, eps)
