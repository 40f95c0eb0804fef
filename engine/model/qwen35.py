"""Qwen3.5 mixture-of-experts, text only: the whole model in one file.

    hidden = embed(ids)
    each layer:  hidden += mixer(norm(hidden));  hidden += moe(norm(hidden))
    mixer: Gated DeltaNet, or (by ``layer_types``) full attention with an output gate

Source: the released checkpoints, and transformers' ``qwen3_5_moe``, which the tests compare with.
Weights are fused where one matrix product then serves several tensors; ``_Builder`` says which
checkpoint tensor lands where. What the checkpoint stores as ``w`` for use as ``1 + w``, or as
``A_log`` for use as ``-exp(A_log)``, is stored here in the form it is used in (``prepare``).
"""

import torch

from engine.inputs import Inputs
from engine.kernels.interface import Kernels
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
from engine.plan import Plan
from transport.copy.tensors import CacheTensors


class Qwen35:
    """Weights of one model and its forward pass; stateless, the cache is passed in.

    ``plan`` tells the loader where each checkpoint tensor goes; call ``prepare`` once after they
    are all in. ``dtype`` is the compute dtype; norms and gates' parameters are float32.
    ``num_bytes``: what the weights take.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.plan = Plan(
            ignored=frozenset({"lm_head.weight"} if config.tie_word_embeddings else ())
        )
        new = WeightBuilder(self.plan, config.quantization, dtype, device)
        self.weights = _Builder(config, new).weights(device)
        self.num_bytes = new.num_bytes

    @torch.inference_mode()
    def prepare(self) -> None:
        """Turn stored parameters into the form the forward pass uses, in place."""
        norms = [self.weights.norm]
        for layer in self.weights.layers:
            norms += [layer.input_norm, layer.post_norm]
            if isinstance(layer.mixer, AttentionWeights):
                norms.append(layer.mixer.kq_norm)
            else:
                layer.mixer.neg_exp_a.exp_().neg_()
        if mtp := self.weights.mtp:
            assert isinstance(mtp.layer.mixer, AttentionWeights), "a draft layer attends"
            norms += [mtp.embedding_norm, mtp.hidden_norm, mtp.norm]
            norms += [mtp.layer.input_norm, mtp.layer.post_norm, mtp.layer.mixer.kq_norm]
        for norm in norms:
            norm.add_(1.0)

    def forward(
        self,
        inputs: Inputs,
        ids: torch.Tensor,
        cache: CacheTensors,
        kernels: Kernels,
        *,
        every_token: bool = False,
    ) -> torch.Tensor:
        """Run ``ids`` [tokens] through all layers -> normed hidden [sampled rows, hidden], or
        [tokens, hidden] with ``every_token``.

        Updates the pages and state slots of the rows in ``inputs``.
        """
        config, weights = self.config, self.weights
        eps = config.rms_norm_eps
        hidden, pending = kernels.embed(ids, weights.embed), None
        deltanet = attention = 0
        for layer in weights.layers:
            mixer, moe = layer.mixer, layer.moe
            hidden, x = kernels.add_norm(hidden, pending, layer.input_norm, eps)
            if isinstance(mixer, DeltaNetWeights):
                conv, recurrent = cache.conv[:, deltanet], cache.recurrent[:, deltanet]
                mixed = kernels.deltanet(x, mixer, eps, conv, recurrent, inputs, deltanet)
                deltanet += 1
            else:
                mixed = kernels.attention(
                    x, mixer, eps, weights.inv_freq, cache.kv, attention, inputs
                )
                attention += 1
            hidden, pending = kernels.linear_add(hidden, mixed, mixer.out_proj)
            hidden, pending = kernels.moe_add(
                hidden, pending, layer.post_norm, eps, moe, config.num_experts_per_tok, inputs
            )
        index = inputs.sample_index
        every = every_token or index.shape[0] == hidden.shape[0]
        return kernels.final_norm(hidden, pending, weights.norm, eps, None if every else index)

    def logits(
        self,
        hidden: torch.Tensor,
        num_ids: int,
        kernels: Kernels,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[rows, hidden] -> float32 logits [rows, num_ids] of the first ``num_ids`` ids; in
        ``out`` where given."""
        return kernels.logits(hidden, self.weights.lm_head[:num_ids], out)


class _Builder:
    """Says which weights a model has, of which checkpoint tensors."""

    def __init__(self, config: ModelConfig, new: WeightBuilder) -> None:
        self.config, self.new = config, new

    def weights(self, device: torch.device) -> Weights:
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
