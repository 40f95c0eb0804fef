"""Where the weights of a Qwen3.5 model come from: which checkpoint tensor fills which rows.

Weights are fused if one matrix product then serves several tensors (engine/model/weights.py).
"""

import torch

from engine.model.builder import Part, WeightBuilder
from engine.model.config import LayerType, ModelConfig
from engine.model.weights import (
    AttentionWeights,
    DeltaNetWeights,
    LayerWeights,
    MoeWeights,
    MtpWeights,
    Weights,
)


class Qwen35Weights:
    """Allocates a model's weights, and registers the checkpoint tensor of each part."""

    def __init__(self, config: ModelConfig, new: WeightBuilder) -> None:
        self.config, self.new = config, new

    def allocate(self, device: torch.device) -> Weights:
        """The weights, allocated but not filled; the loading plan of ``new`` fills them."""
        config, new = self.config, self.new
        shape = config.vocab_size, config.hidden_size
        embed = new.tensor("embed_tokens.weight", *shape, std=1.0)
        lm_head = embed
        if not config.tie_word_embeddings:
            lm_head = new.tensor("lm_head.weight", *shape, std=config.hidden_size**-0.5)
        half = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
        return Weights(
            embed=embed,
            layers=tuple(
                self._layer(f"layers.{i}.", kind) for i, kind in enumerate(config.layer_types)
            ),
            norm=new.vector("norm.weight", config.hidden_size),
            lm_head=lm_head,
            inv_freq=(1.0 / config.rope_theta**half).to(device),
            mtp=self._mtp() if config.num_mtp_layers else None,
        )

    def _mtp(self) -> MtpWeights:
        new, hidden = self.new, self.config.hidden_size
        return MtpWeights(
            embedding_norm=new.vector("mtp.pre_fc_norm_embedding.weight", hidden),
            hidden_norm=new.vector("mtp.pre_fc_norm_hidden.weight", hidden),
            fc=new.matrix(2 * hidden, Part("mtp.fc.weight", hidden)),
            layer=self._layer("mtp.layers.0.", "full_attention"),
            norm=new.vector("mtp.norm.weight", hidden),
        )

    def _layer(self, name: str, kind: LayerType) -> LayerWeights:
        hidden = self.config.hidden_size
        return LayerWeights(
            input_norm=self.new.vector(name + "input_layernorm.weight", hidden),
            mixer=(
                self._deltanet(name + "linear_attn.")
                if kind == "linear_attention"
                else self._attention(name + "self_attn.")
            ),
            post_norm=self.new.vector(name + "post_attention_layernorm.weight", hidden),
            moe=self._moe(name + "mlp."),
        )

    def _deltanet(self, name: str) -> DeltaNetWeights:
        config, new = self.config, self.new
        heads, hidden = config.linear_num_value_heads, config.hidden_size
        return DeltaNetWeights(
            in_proj=new.matrix(
                hidden,
                Part(name + "in_proj_qkv.weight", config.conv_channels),
                Part(name + "in_proj_z.weight", config.value_dim),
                Part(name + "in_proj_b.weight", heads),
                Part(name + "in_proj_a.weight", heads),
                aligned=True,
            ),
            conv=new.conv(
                name + "conv1d.weight", config.conv_channels, config.linear_conv_kernel_dim
            ),
            neg_exp_a=new.vector(name + "A_log", heads, mean=1.0, std=0.5),
            dt_bias=new.vector(name + "dt_bias", heads, mean=1.0),
            norm=new.vector(name + "norm.weight", config.linear_value_head_dim, mean=1.0),
            out_proj=new.matrix(config.value_dim, Part(name + "out_proj.weight", hidden)),
        )

    def _attention(self, name: str) -> AttentionWeights:
        config, new = self.config, self.new
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        dim, hidden = config.head_dim, config.hidden_size
        return AttentionWeights(
            in_proj=new.matrix(
                hidden,
                Part(name + "v_proj.weight", kv_heads * dim),
                Part(name + "k_proj.weight", kv_heads * dim),
                # The checkpoint has q and gate rows alternating head by head; here all q come
                # first.
                Part(name + "q_proj.weight", 2 * heads * dim, interleaved=(heads, 2)),
            ),
            kq_norm=new.norms(
                dim, (name + "k_norm.weight", kv_heads), (name + "q_norm.weight", heads)
            ),
            out_proj=new.matrix(heads * dim, Part(name + "o_proj.weight", hidden)),
        )

    def _moe(self, name: str) -> MoeWeights:
        config, new = self.config, self.new
        shared, num = config.shared_expert_intermediate_size, config.num_experts
        dim, hidden, experts = config.moe_intermediate_size, config.hidden_size, name + "experts."
        halves = Part("gate_proj", dim), Part("up_proj", dim)
        return MoeWeights(
            in_proj=new.matrix(
                hidden,
                Part(name + "shared_expert.gate_proj.weight", shared),
                Part(name + "shared_expert.up_proj.weight", shared),
                Part(name + "gate.weight", num),
                Part(name + "shared_expert_gate.weight", 1),
                aligned=True,
            ),
            shared_down=new.matrix(shared, Part(name + "shared_expert.down_proj.weight", hidden)),
            gate_up=new.experts(hidden, num, experts, "gate_up_proj", halves),
            down=new.experts(dim, num, experts, "down_proj", [Part("down_proj", hidden)]),
        )
