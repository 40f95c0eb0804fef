"""Where the weights of a model come from: which checkpoint tensor fills which rows.

Weights are fused if one matrix product then serves several tensors (engine/model/weights.py).
"""

import math

import torch

from engine.loading.plan import Interleaving
from engine.model.builder import Part, WeightBuilder
from engine.model.config import ModelConfig
from engine.model.layers import Attention, DeltaNet, Dense, LayerSpec, LinearScaling, Moe, Rope
from engine.model.matrix import Matrix
from engine.model.quantization import LM_HEAD
from engine.model.weights import (
    AttentionWeights,
    DeltaNetWeights,
    DenseWeights,
    LayerWeights,
    MoeWeights,
    MtpWeights,
    Weights,
)


class DecoderWeights:
    """Allocates a model's weights, and registers the checkpoint tensor of each part."""

    def __init__(self, config: ModelConfig, new: WeightBuilder, device: torch.device) -> None:
        self.config, self.new = config, new
        self._norm_mean = 0.0 if config.plus_one_norms else 1.0
        ropes = {m.rope for layer in config.layers if isinstance(m := layer.mixer, Attention)}
        self._inv_freqs = {rope: frequencies(rope).to(device) for rope in ropes}

    def allocate(self) -> Weights:
        """The weights, allocated but not filled; the loading plan of ``new`` fills them."""
        config, new = self.config, self.new
        shape = config.vocab_size, config.hidden_size
        embed = new.tensor("embed_tokens.weight", *shape, std=1.0)
        lm_head = Matrix.of(embed)
        if not config.tie_word_embeddings:
            lm_head = new.lm_head(config.hidden_size, Part(LM_HEAD, config.vocab_size))
        return Weights(
            embed=embed,
            layers=tuple(self._layer(f"layers.{i}.", spec) for i, spec in enumerate(config.layers)),
            norm=self._norm("norm.weight"),
            lm_head=lm_head,
            mtp=self._mtp() if config.num_mtp_layers else None,
        )

    def _mtp(self) -> MtpWeights:
        new, hidden = self.new, self.config.hidden_size
        return MtpWeights(
            embedding_norm=self._norm("mtp.pre_fc_norm_embedding.weight"),
            hidden_norm=self._norm("mtp.pre_fc_norm_hidden.weight"),
            fc=new.matrix(2 * hidden, Part("mtp.fc.weight", hidden)),
            layer=self._layer("mtp.layers.0.", self.config.mtp_layer),
            norm=self._norm("mtp.norm.weight"),
        )

    def _norm(self, name: str) -> torch.Tensor:
        """A norm of hidden states. Dummy weights are drawn beside a factor of 1."""
        return self.new.vector(name, self.config.hidden_size, mean=self._norm_mean)

    def _layer(self, name: str, spec: LayerSpec) -> LayerWeights:
        after = spec.norms_after
        mixer_norm, post_norm = None, "post_attention_layernorm.weight"
        if after:
            mixer_norm = self._norm(name + post_norm)
            post_norm = "pre_feedforward_layernorm.weight"
        return LayerWeights(
            input_norm=self._norm(name + "input_layernorm.weight"),
            mixer=(
                self._deltanet(name + "linear_attn.", spec.mixer)
                if isinstance(spec.mixer, DeltaNet)
                else self._attention(name + "self_attn.", spec.mixer)
            ),
            post_norm=self._norm(name + post_norm),
            mlp=(
                self._moe(name + "mlp.", spec.mlp)
                if isinstance(spec.mlp, Moe)
                else self._dense(name, spec.mlp, after=after)
            ),
            mixer_norm=mixer_norm,
        )

    def _deltanet(self, name: str, spec: DeltaNet) -> DeltaNetWeights:
        new, hidden = self.new, self.config.hidden_size
        heads = spec.linear_num_value_heads
        projections = [
            Part(name + "in_proj_qkv.weight", spec.conv_channels),
            Part(name + "in_proj_z.weight", spec.value_dim),
            Part(name + "in_proj_b.weight", heads),
            Part(name + "in_proj_a.weight", heads),
        ]
        if spec.interleaved:
            keys, key_dim = spec.linear_num_key_heads, spec.linear_key_head_dim
            values, group = spec.value_dim // keys, heads // keys
            qkvz = Interleaving(keys, (key_dim, key_dim, values, values))
            ba = Interleaving(keys, (group, group))
            projections = [
                Part(name + "in_proj_qkvz.weight", spec.conv_channels + spec.value_dim, qkvz),
                Part(name + "in_proj_ba.weight", 2 * heads, ba),
            ]
        return DeltaNetWeights(
            in_proj=new.matrix(hidden, *projections, aligned=True),
            conv=new.conv(name + "conv1d.weight", spec.conv_channels, spec.linear_conv_kernel_dim),
            neg_exp_a=new.vector(name + "A_log", heads, mean=1.0, std=0.5),
            dt_bias=new.vector(name + "dt_bias", heads, mean=1.0),
            norm=new.vector(name + "norm.weight", spec.linear_value_head_dim, mean=1.0),
            out_proj=new.matrix(spec.value_dim, Part(name + "out_proj.weight", hidden)),
        )

    def _attention(self, name: str, spec: Attention) -> AttentionWeights:
        new, dim, hidden = self.new, spec.head_dim, self.config.hidden_size
        heads, kv_heads = spec.num_attention_heads, spec.num_key_value_heads
        norms = (name + "k_norm.weight", kv_heads), (name + "q_norm.weight", heads)
        # With a gate, the checkpoint has q and gate rows alternating head by head; here all q come
        # first.
        q = Part(name + "q_proj.weight", heads * dim)
        if spec.gated:
            q = Part(name + "q_proj.weight", 2 * heads * dim, order=Interleaving(heads, (dim, dim)))
        biases = (
            (name + "v_proj.bias", kv_heads * dim),
            (name + "k_proj.bias", kv_heads * dim),
            (name + "q_proj.bias", heads * dim),
        )
        return AttentionWeights(
            in_proj=new.matrix(
                hidden,
                Part(name + "v_proj.weight", kv_heads * dim),
                Part(name + "k_proj.weight", kv_heads * dim),
                q,
            ),
            kq_norm=new.norms(dim, *(norms if spec.normed else ()), mean=self._norm_mean),
            out_proj=new.matrix(heads * dim, Part(name + "o_proj.weight", hidden)),
            inv_freq=self._inv_freqs[spec.rope],
            gated=spec.gated,
            bias=new.biases(*biases) if spec.qkv_bias else None,
            out_bias=new.biases((name + "o_proj.bias", hidden)) if spec.o_bias else None,
            window=spec.window,
            scale=spec.scale,
        )

    def _dense(self, layer: str, spec: Dense, *, after: bool) -> DenseWeights:
        new, hidden, size = self.new, self.config.hidden_size, spec.intermediate_size
        name = layer + "mlp."
        halves = Part(name + "gate_proj.weight", size), Part(name + "up_proj.weight", size)
        norm = layer + "post_feedforward_layernorm.weight"
        return DenseWeights(
            gate_up=new.matrix(hidden, *halves),
            down=new.matrix(size, Part(name + "down_proj.weight", hidden)),
            activation=spec.activation,
            out_norm=self._norm(norm) if after else None,
        )

    def _moe(self, name: str, spec: Moe) -> MoeWeights:
        new, hidden, experts = self.new, self.config.hidden_size, name + "experts."
        shared, num = spec.shared_expert_intermediate_size, spec.num_experts
        dim = spec.moe_intermediate_size
        halves = Part("gate_proj", dim), Part("up_proj", dim)
        parts, shared_down = [Part(name + "gate.weight", num)], new.nothing(hidden)
        if shared:
            parts = [
                Part(name + "shared_expert.gate_proj.weight", shared),
                Part(name + "shared_expert.up_proj.weight", shared),
                *parts,
                Part(name + "shared_expert_gate.weight", 1),
            ]
            down = Part(name + "shared_expert.down_proj.weight", hidden)
            shared_down = new.matrix(shared, down)
        return MoeWeights(
            in_proj=new.matrix(hidden, *parts, aligned=True),
            shared_down=shared_down,
            gate_up=new.experts(hidden, num, experts, "gate_up_proj", halves),
            down=new.experts(dim, num, experts, "down_proj", [Part("down_proj", hidden)]),
            top_k=spec.num_experts_per_tok,
            renormalised=spec.norm_topk_prob,
        )


def frequencies(rope: Rope) -> torch.Tensor:
    """The rotations per position, float32 [rotary_dim / 2].

    Linear scaling divides all frequencies by ``factor``. Llama 3's scaling divides frequencies of
    long wavelengths by ``factor``, keeps those of short ones, and interpolates between. Source:
    transformers' ``_compute_llama3_parameters``.
    """
    half = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    plain = 1.0 / rope.rope_theta**half
    if (scaling := rope.scaling) is None:
        return plain
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * plain / scaling.factor + kept * plain
