"""The weights of a model, fused where one matrix product serves several tensors."""

from dataclasses import dataclass

import torch

from engine.model.layers import Activation
from engine.model.matrix import Matrix
from engine.model.packed_experts import PackedExperts

Experts = Matrix | PackedExperts
"""The weights of all experts [experts, rows, k]."""


@dataclass(frozen=True)
class DeltaNetWeights:
    """Weights of a Gated DeltaNet mixer. Rows of ``in_proj``: q, k, v, then z, b, a, then zeros up
    to a multiple of 16."""

    in_proj: Matrix
    conv: torch.Tensor
    neg_exp_a: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    out_proj: Matrix


@dataclass(frozen=True)
class AttentionWeights:
    """Weights of an attention mixer. Rows of ``in_proj``: v, k, q, and gate if ``gated``; k and q
    share one norm and rotation pass, without a norm if ``kq_norm`` has no rows. Biases of
    ``in_proj`` [rows] and ``out_proj`` [hidden], or None. ``inv_freq`` float32 [rotary_dim / 2]:
    rotations per position, one tensor for all layers with the same. ``window`` and ``scale`` as in
    ``layers.Attention``."""

    in_proj: Matrix
    kq_norm: torch.Tensor
    out_proj: Matrix
    inv_freq: torch.Tensor
    gated: bool = True
    bias: torch.Tensor | None = None
    out_bias: torch.Tensor | None = None
    window: int | None = None
    scale: float | None = None

    @property
    def normed(self) -> bool:
        return self.kq_norm.shape[0] > 0


@dataclass(frozen=True)
class MoeWeights:
    """Weights of a mixture of experts. Rows of ``in_proj``: shared expert's gate and up, then the
    router, then the shared gate, then zeros up to a multiple of 16. Without a shared expert,
    ``shared_down`` has no columns, and ``in_proj`` only the router."""

    in_proj: Matrix
    shared_down: Matrix
    gate_up: Experts
    down: Experts
    top_k: int
    renormalised: bool = True


@dataclass(frozen=True)
class DenseWeights:
    """Weights of a dense MLP. Rows of ``gate_up``: gate, then up. ``out_norm``: norm of its result,
    or None."""

    gate_up: Matrix
    down: Matrix
    activation: Activation = "silu"
    out_norm: torch.Tensor | None = None


@dataclass(frozen=True)
class LayerWeights:
    """Weights of a layer. ``post_norm`` is before the MLP; ``mixer_norm``: norm of the mixer's
    result, or None."""

    input_norm: torch.Tensor
    mixer: DeltaNetWeights | AttentionWeights
    post_norm: torch.Tensor
    mlp: MoeWeights | DenseWeights
    mixer_norm: torch.Tensor | None = None

    @property
    def norms(self) -> list[torch.Tensor]:
        """The norms of a layer that may be stored as ``w`` for use as ``1 + w``."""
        norms = [self.input_norm, self.post_norm, self.mixer_norm]
        if isinstance(self.mixer, AttentionWeights):
            norms.append(self.mixer.kq_norm)
        if isinstance(self.mlp, DenseWeights):
            norms.append(self.mlp.out_norm)
        return [norm for norm in norms if norm is not None]


@dataclass(frozen=True)
class MtpWeights:
    """Weights of the draft layer (multi-token prediction). Columns of ``fc``: the token's
    embedding, then the trunk's hidden state."""

    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    fc: Matrix
    layer: LayerWeights
    norm: torch.Tensor


@dataclass(frozen=True)
class Weights:
    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    lm_head: Matrix
    mtp: MtpWeights | None = None
