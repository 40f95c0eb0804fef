"""The weights of a model, fused where one matrix product serves several tensors."""

from dataclasses import dataclass

import torch

from engine.model.matrix import Matrix


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
    ``in_proj`` [rows] and ``out_proj`` [hidden], or None."""

    in_proj: Matrix
    kq_norm: torch.Tensor
    out_proj: Matrix
    gated: bool = True
    bias: torch.Tensor | None = None
    out_bias: torch.Tensor | None = None

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
    gate_up: Matrix
    down: Matrix
    top_k: int
    renormalised: bool = True


@dataclass(frozen=True)
class DenseWeights:
    """Weights of a dense MLP. Rows of ``gate_up``: gate, then up."""

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True)
class LayerWeights:
    input_norm: torch.Tensor
    mixer: DeltaNetWeights | AttentionWeights
    post_norm: torch.Tensor
    mlp: MoeWeights | DenseWeights


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
    lm_head: torch.Tensor
    inv_freq: torch.Tensor
    mtp: MtpWeights | None = None
