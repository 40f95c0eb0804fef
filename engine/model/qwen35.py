"""Qwen3.5 mixture-of-experts, text only: the whole model in one file.

    hidden = embed(ids)
    each layer:  hidden += mixer(norm(hidden));  hidden += moe(norm(hidden))
    mixer: Gated DeltaNet, or (by ``layer_types``) full attention with an output gate

Source: the released checkpoints, and transformers' ``qwen3_5_moe``, which the tests compare with.
Weights are fused where one matrix product then serves several tensors; ``_plan_*`` say which
checkpoint tensor lands where. What the checkpoint stores as ``w`` for use as ``1 + w``, or as
``A_log`` for use as ``-exp(A_log)``, is stored here in the form it is used in (``prepare``).
"""

from itertools import accumulate

import torch
import torch.nn.functional as F

from engine.inputs import Inputs
from engine.kernels.interface import Kernels
from engine.model.config import ModelConfig
from engine.model.weights import (
    AttentionWeights,
    DeltaNetWeights,
    LayerWeights,
    MoeWeights,
    Weights,
)
from engine.plan import Plan
from transport.tensors import CacheTensors


class Qwen35:
    """Weights of one model and its forward pass; stateless, the cache is passed in.

    ``plan`` tells the loader where each checkpoint tensor goes; call ``prepare`` once after they
    are all in. ``dtype`` is the compute dtype; norms and gates' parameters are float32.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.plan = Plan(
            ignored=frozenset({"lm_head.weight"} if config.tie_word_embeddings else ())
        )
        self.weights = _Builder(config, self.plan, dtype, device).weights()

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
        for norm in norms:
            norm.add_(1.0)

    def forward(
        self, inputs: Inputs, ids: torch.Tensor, cache: CacheTensors, kernels: Kernels
    ) -> torch.Tensor:
        """Run ``ids`` [tokens] through all layers -> normed hidden [sampled rows, hidden].

        Updates the pages and state slots of the rows in ``inputs``.
        """
        config, weights = self.config, self.weights
        eps = config.rms_norm_eps
        hidden, pending = F.embedding(ids, weights.embed), None
        deltanet = attention = 0
        for layer in weights.layers:
            mixer, moe = layer.mixer, layer.moe
            hidden, x = kernels.add_norm(hidden, pending, layer.input_norm, eps)
            if isinstance(mixer, DeltaNetWeights):
                conv, recurrent = cache.conv[:, deltanet], cache.recurrent[:, deltanet]
                mixed = kernels.deltanet(x, mixer, eps, conv, recurrent, inputs)
                deltanet += 1
            else:
                mixed = kernels.attention(
                    x, mixer, eps, weights.inv_freq, cache.kv, attention, inputs
                )
                attention += 1
            hidden, pending = kernels.linear_add(hidden, mixed, mixer.out_proj)
            hidden, x = kernels.add_norm(hidden, pending, layer.post_norm, eps)
            hidden, pending = kernels.moe_add(hidden, x, moe, config.num_experts_per_tok, inputs)
        index = inputs.sample_index
        every = index.shape[0] == hidden.shape[0]
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
    """Allocates the weights and registers where each checkpoint tensor goes."""

    def __init__(
        self, config: ModelConfig, plan: Plan, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.plan, self.dtype, self.device = config, plan, dtype, device

    def weights(self) -> Weights:
        config = self.config
        embed = self._matrix("embed_tokens.weight", config.vocab_size, config.hidden_size, std=1.0)
        lm_head = embed
        if not config.tie_word_embeddings:
            lm_head = self._matrix("lm_head.weight", config.vocab_size, config.hidden_size)
        half = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
        return Weights(
            embed=embed,
            layers=tuple(self._layer(i) for i in range(len(config.layer_types))),
            norm=self._vector("norm.weight", config.hidden_size),
            lm_head=lm_head,
            inv_freq=(1.0 / config.rope_theta**half).to(self.device),
        )

    def _layer(self, index: int) -> LayerWeights:
        name = f"layers.{index}."
        linear = self.config.layer_types[index] == "linear_attention"
        return LayerWeights(
            input_norm=self._vector(name + "input_layernorm.weight", self.config.hidden_size),
            mixer=(
                self._deltanet(name + "linear_attn.")
                if linear
                else self._attention(name + "self_attn.")
            ),
            post_norm=self._vector(
                name + "post_attention_layernorm.weight", self.config.hidden_size
            ),
            moe=self._moe(name + "mlp."),
        )

    def _deltanet(self, name: str) -> DeltaNetWeights:
        config = self.config
        heads = config.linear_num_value_heads
        channels, kernel = config.conv_channels, config.linear_conv_kernel_dim
        conv = self._empty(channels, kernel)
        self.plan.add(name + "conv1d.weight", conv.unsqueeze(1), std=kernel**-0.5)
        return DeltaNetWeights(
            in_proj=self._fused(
                (name + "in_proj_qkv.weight", channels),
                (name + "in_proj_z.weight", config.value_dim),
                (name + "in_proj_b.weight", heads),
                (name + "in_proj_a.weight", heads),
            ),
            conv=conv,
            neg_exp_a=self._vector(name + "A_log", heads, mean=1.0, std=0.5),
            dt_bias=self._vector(name + "dt_bias", heads, mean=1.0),
            norm=self._vector(name + "norm.weight", config.linear_value_head_dim, mean=1.0),
            out_proj=self._matrix(name + "out_proj.weight", config.hidden_size, config.value_dim),
        )

    def _attention(self, name: str) -> AttentionWeights:
        config = self.config
        heads, kv_heads, dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        in_proj = self._empty((2 * kv_heads + 2 * heads) * dim, config.hidden_size)
        k, q_gate, v = in_proj.split_with_sizes((kv_heads * dim, 2 * heads * dim, kv_heads * dim))
        std = config.hidden_size**-0.5
        self.plan.add(name + "k_proj.weight", k, std=std)
        self.plan.add(name + "v_proj.weight", v, std=std)
        # The checkpoint has q and gate rows alternating head by head; here all q come first.
        self.plan.add(
            name + "q_proj.weight",
            q_gate.view(2, heads, dim, -1).transpose(0, 1),
            q_gate.shape,
            view=(heads, 2, dim, config.hidden_size),
            std=std,
        )
        kq_norm = torch.empty(kv_heads + heads, dim, device=self.device)
        self.plan.add(name + "k_norm.weight", kq_norm[:kv_heads], (dim,))
        self.plan.add(name + "q_norm.weight", kq_norm[kv_heads:], (dim,))
        return AttentionWeights(
            in_proj=in_proj,
            kq_norm=kq_norm,
            out_proj=self._matrix(name + "o_proj.weight", config.hidden_size, heads * dim),
        )

    def _moe(self, name: str) -> MoeWeights:
        config = self.config
        shared = config.shared_expert_intermediate_size
        experts, dim, hidden = config.num_experts, config.moe_intermediate_size, config.hidden_size
        gate_up, down = self._empty(experts, 2 * dim, hidden), self._empty(experts, hidden, dim)
        fused = name + "experts."
        self.plan.add(fused + "gate_up_proj", gate_up, std=hidden**-0.5)
        self.plan.add(fused + "down_proj", down, std=dim**-0.5)
        halves = (("gate_proj", gate_up[:, :dim]), ("up_proj", gate_up[:, dim:]))
        self.plan.add_split(
            fused + "gate_up_proj",
            {f"{fused}{e}.{n}.weight": w[e] for n, w in halves for e in range(experts)},
        )
        self.plan.add_split(
            fused + "down_proj",
            {f"{fused}{e}.down_proj.weight": down[e] for e in range(experts)},
        )
        return MoeWeights(
            in_proj=self._fused(
                (name + "shared_expert.gate_proj.weight", shared),
                (name + "shared_expert.up_proj.weight", shared),
                (name + "gate.weight", experts),
                (name + "shared_expert_gate.weight", 1),
            ),
            shared_down=self._matrix(name + "shared_expert.down_proj.weight", hidden, shared),
            gate_up=gate_up,
            down=down,
        )

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _matrix(self, name: str, rows: int, columns: int, std: float | None = None) -> torch.Tensor:
        matrix = self._empty(rows, columns)
        self.plan.add(name, matrix, std=columns**-0.5 if std is None else std)
        return matrix

    def _fused(self, *parts: tuple[str, int]) -> torch.Tensor:
        """One matrix over the hidden states whose rows are several checkpoint tensors.

        Rows of zeros fill it up to a multiple of 16: without that, a matrix product of an odd
        width falls back to a kernel seven times slower (cuBLAS on an H200, 1,281 rows).
        """
        columns = self.config.hidden_size
        sizes = [rows for _, rows in parts]
        matrix = self._empty(-(-sum(sizes) // 16) * 16, columns)
        for (name, rows), end in zip(parts, accumulate(sizes), strict=True):
            self.plan.add(name, matrix[end - rows : end], std=columns**-0.5)
        matrix[sum(sizes) :].zero_()
        return matrix

    def _vector(self, name: str, size: int, *, mean: float = 0.0, std: float = 0.0) -> torch.Tensor:
        vector = torch.empty(size, device=self.device)
        self.plan.add(name, vector, mean=mean, std=std)
        return vector
