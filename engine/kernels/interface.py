"""The kernels that a model needs; every kernel set (PyTorch, Triton) computes these numbers.

All tensors are on one device. Activations are ``[tokens, …]`` in the compute dtype, decode rows
first and prefill chunks after them (engine/inputs.py). State is passed as one layer's view into
the cache and updated in place. A row that starts at 0 begins from an empty state without reading
its state slot, and memory past a sequence's last token is never read into a result: either may
hold NaN. A matrix with rows in FP8 (engine/model/matrix.py) stands for its dequantised values, up
to the set's rounding.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.inputs import Inputs
from engine.model.matrix import Matrix
from engine.model.weights import (
    AttentionWeights,
    DeltaNetWeights,
    DenseWeights,
    Experts,
    MoeWeights,
)
from transport.wire.layout import CacheLayout

Pending = object | None
"""Summands that a set has not added yet; the model passes them, unread, to the set's next norm."""


@dataclass(frozen=True)
class Activation:
    """The output of a norm or mixer, ``tensor`` [tokens, …], for the set's next products.

    ``prepared`` is what those products read instead, if the set has made it already; the model
    passes it on, unread.
    """

    tensor: torch.Tensor
    prepared: object | None = None


class Kernels(Protocol):
    """One implementation of the forward pass's pieces."""

    prefill_block: int | None
    """Tokens of a prompt that are computed in a pass of their own; None packs all rows into one.

    A set whose arithmetic depends on how many rows a matrix has (the CPU's GEMMs do) names the
    block, so that a prompt cut into chunks computes the bits of the prompt in one piece.
    """

    def ring_shape(self, layout: CacheLayout) -> tuple[int, int]:
        """(parts, numbers) of ``StateRing.updates``."""
        ...

    def embed(self, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``weight[ids]`` [tokens, hidden] of ids [tokens]."""
        ...

    def add_norm(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, Activation]:
        """``hidden + pending``, and its RMS norm. ``pending``: the summands that ``linear_add`` or
        ``moe_add`` returned."""
        ...

    def linear_add(
        self, hidden: torch.Tensor, x: Activation, weight: Matrix
    ) -> tuple[torch.Tensor, Pending]:
        """``hidden + x @ weight.T``, possibly as summands: (hidden, pending)."""
        ...

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
        """Gated DeltaNet up to its output projection -> [tokens, v_heads * v_dim].

        ``x @ in_proj.T`` is [tokens, q | k | v | z | b | a]. Depthwise causal conv and silu over
        q, k, v; unit q and k; the gated delta rule; RMS norm per head, times ``silu(z)``. conv
        [state slots, channels, kernel - 1] holds the last conv inputs, oldest first; recurrent
        [state slots, v_heads, k_dim, v_dim] float32. Value head j uses key head
        ``j // (v_heads / k_heads)``. ``layer`` counts the DeltaNet layers: with ``drafts`` in
        ``inputs``, its ring is read and written too, and the states advance by certain tokens only.
        States that a prefill row keeps (``Rows.keeps``) are stored too; no output or other state
        depends on that.
        """
        ...

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
        """Causal attention up to its output projection -> [tokens, heads * head_dim].

        ``x @ in_proj.T`` is [tokens, (v | k | q | gate) heads * head_dim]; without a norm, a
        gate or a bias where ``weights`` has none, and within its ``window``. Norm and rotate k and
        q, write k and v to attention layer ``layer``'s pages, attend, times ``sigmoid(gate)``. kv
        is the page pool [pages, layers, 2, page_size, kv_heads, head_dim] or, with ``inputs`` as
        layers with window pages see them, the window pages; inv_freq
        [rotary_dim / 2] float32 are the rotations per position, halves of ``rotary_dim`` paired.
        """
        ...

    def draft_input(
        self,
        ids: torch.Tensor,
        embed: torch.Tensor,
        hidden: torch.Tensor,
        embedding_norm: torch.Tensor,
        hidden_norm: torch.Tensor,
        eps: float,
    ) -> Activation:
        """[norm(embed[ids]), norm(hidden)] of each token -> [tokens, 2 * hidden]."""
        ...

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
        """Write only the k and v that ``attention`` writes."""
        ...

    def moe_add(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: MoeWeights,
        top_k: int,
        inputs: Inputs,
    ) -> tuple[torch.Tensor, Pending]:
        """With (h, x) = ``add_norm``: h + ``top_k`` experts of x + sigmoid(shared gate) * shared
        expert of x, possibly as summands: (h, pending).

        ``x @ in_proj.T`` is [tokens, shared gate | shared up | router | shared gate's logit] (and
        rows of padding); the chosen experts' weights are a float32 softmax over them.
        """
        ...

    def dense_add(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: DenseWeights,
    ) -> tuple[torch.Tensor, Pending]:
        """With (h, x) = ``add_norm``: h + down(activation(gate) * up), the latter normed if
        ``weights`` has an ``out_norm``; possibly as summands."""
        ...

    def final_norm(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        index: torch.Tensor | None,
    ) -> torch.Tensor:
        """RMS norm of ``hidden + pending`` at the tokens ``index``; None: at all tokens."""
        ...

    def logits(
        self,
        hidden: torch.Tensor,
        lm_head: Matrix,
        num_ids: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``hidden @ lm_head.T`` in float32 for the first ``num_ids`` ids -> [rows, num_ids];
        written to ``out`` if given, whose rows are contiguous."""
        ...


class Operators(Protocol):
    """The operators of PyTorch from which engine/model composes the blocks of ``Kernels``.

    Only the reference set has them; a set of fused kernels computes whole blocks. Shapes are as in
    ``Kernels``; each operator handles decode rows, rows with drafts and prefill rows.
    """

    def linear(self, x: torch.Tensor, weight: Matrix) -> torch.Tensor:
        """``x @ weight.T`` [tokens, rows]."""
        ...

    def add_linear(self, into: torch.Tensor, x: torch.Tensor, weight: Matrix) -> torch.Tensor:
        """``into + x @ weight.T`` [tokens, rows], as a new tensor."""
        ...

    def causal_conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        state: torch.Tensor,
        inputs: Inputs,
        layer: int,
    ) -> torch.Tensor:
        """silu of the depthwise causal conv of x [tokens, channels], with the state in place."""
        ...

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
        """The gated delta rule -> [tokens, v_heads, v_dim], with the state in place; q and k
        [tokens, v_heads, k_dim], v [tokens, v_heads, v_dim], g (log decay) and beta [tokens,
        v_heads]."""
        ...

    def store_kv(
        self, k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, layer: int, inputs: Inputs
    ) -> None:
        """Write k and v [tokens, kv_heads, head_dim] to the pages of attention layer ``layer``."""
        ...

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
        """Causal attention of q [tokens, heads, head_dim] to the pages -> the same shape; to the
        last ``window`` tokens only, and with another ``scale`` than ``head_dim ** -0.5``, if
        given."""
        ...

    def add_experts(
        self,
        into: torch.Tensor,
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        gate_up: Experts,
        down: Experts,
    ) -> None:
        """Add to ``into`` [tokens, hidden] the chosen experts' results, times ``weights``."""
        ...
