"""A decoder layer as data: which mixer and MLP it has, and their dimensions.

Names of dimensions follow the checkpoints' ``config.json``.
"""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]
"""``gelu_tanh``: GELU in its approximation by tanh."""


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3's scaling of rotary frequencies: long wavelengths are divided by ``factor``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class LinearScaling:
    """All rotary frequencies are divided by ``factor``."""

    factor: float


Scaling = Llama3Scaling | LinearScaling


@dataclass(frozen=True)
class Rope:
    """Rotary positions of the first ``rotary_dim`` dims of each head."""

    rope_theta: float
    rotary_dim: int
    scaling: Scaling | None = None


@dataclass(frozen=True)
class Attention:
    """Causal attention with grouped heads.

    ``normed``: an RMS norm for each head of q and k. ``gated``: the output times a sigmoid.
    ``qkv_bias``, ``o_bias``: the projections have a bias. ``window``: a token attends to so
    many tokens, the last one itself; None: to all. ``scale`` of q . k; None: ``head_dim ** -0.5``.
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: Rope
    normed: bool = True
    gated: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    window: int | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        _require_multiple(
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
        )


@dataclass(frozen=True)
class DeltaNet:
    """Gated DeltaNet. ``interleaved``: the checkpoint has one projection of q, k, v and z and one
    of b and a, each with all rows of a key head together."""

    linear_conv_kernel_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    interleaved: bool = False

    def __post_init__(self) -> None:
        _require_multiple(
            linear_num_value_heads=self.linear_num_value_heads,
            linear_num_key_heads=self.linear_num_key_heads,
        )
        if self.linear_conv_kernel_dim < 2:
            raise ValueError(f"linear_conv_kernel_dim: {self.linear_conv_kernel_dim} is below 2")

    @property
    def key_dim(self) -> int:
        """Channels of all keys (and of all queries)."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Channels of all values."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the causal conv: [q | k | v]."""
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True)
class Dense:
    """An MLP down(activation(gate) * up)."""

    intermediate_size: int
    activation: Activation = "silu"


@dataclass(frozen=True)
class Moe:
    """A mixture of experts. ``shared_expert_intermediate_size`` 0: no shared expert.
    ``norm_topk_prob``: the chosen experts' probabilities are divided by their sum."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int = 0
    norm_topk_prob: bool = True

    def __post_init__(self) -> None:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok: {self.num_experts_per_tok} of {self.num_experts} experts"
            )


@dataclass(frozen=True)
class LayerSpec:
    """One layer: hidden += mixer(norm(hidden)); hidden += mlp(norm(hidden)).

    ``norms_after``: mixer and MLP each have a norm behind them too, before their result is added.
    """

    mixer: Attention | DeltaNet
    mlp: Dense | Moe
    norms_after: bool = False


def _require_multiple(**sizes: int) -> None:
    (whole, total), (part, each) = sizes.items()
    if total % each:
        raise ValueError(f"{whole}: {total} is not a multiple of {part} {each}")
