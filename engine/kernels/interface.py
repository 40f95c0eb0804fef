"""What a model asks of its kernels; every set (PyTorch, Triton) computes these numbers.

All tensors are on one device. Activations are ``[tokens, …]`` in the compute dtype, decode rows
first and prefill chunks after them (engine/inputs.py). State is passed as one layer's view into
the cache and updated in place. A row that starts at 0 begins from an empty state without reading
its state slot, and memory past a sequence's last token is never read into a result: either may
hold NaN.
"""

from typing import Protocol

import torch

from engine.inputs import Inputs


class Kernels(Protocol):
    """One implementation of the forward pass's pieces."""

    prefill_block: int | None
    """Tokens of a prompt that go through one pass, alone; None packs all rows into one pass.

    A set whose arithmetic depends on how many rows a matrix has (the CPU's GEMMs do) names the
    block, so that a prompt cut into chunks computes the bits of the prompt in one piece.
    """

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``x / rms(x) * weight`` over the last axis, in float32, cast to ``x``'s dtype.

        ``weight`` is float32 and already the ``1 + w`` of the checkpoint.
        """

    def gated_rms_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """``rms_norm(x, weight) * silu(gate)``; x, gate [tokens, heads, dim]; weight [dim]."""

    def norm_rope(
        self, x: torch.Tensor, weight: torch.Tensor, rope: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """RMS norm per head, then rotate the first ``rotary_dim`` dims, halves paired.

        x [tokens, heads, head_dim]; weight [heads, head_dim] float32; rope from ``rope_table``.
        """

    def rope_table(self, positions: torch.Tensor, inv_freq: torch.Tensor) -> torch.Tensor:
        """[2, tokens, 1, rotary_dim] float32: cosines, and sines negated in the first half."""

    def causal_conv(
        self, x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, inputs: Inputs
    ) -> torch.Tensor:
        """Depthwise causal conv over each row's history, then silu.

        x [tokens, channels]; weight [channels, kernel]; state [state slots, channels, kernel - 1]
        holds the last inputs, oldest first.
        """

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
        """Gated delta rule -> [tokens, v_heads, v_dim].

        qkv [tokens, 2 * key_dim + value_dim]; b, a [tokens, v_heads]; neg_exp_a, dt_bias
        [v_heads] float32; state [state slots, v_heads, k_dim, v_dim] float32.
        """

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        inputs: Inputs,
    ) -> torch.Tensor:
        """Write k, v to attention layer ``layer``'s pages, attend causally -> like q.

        q [tokens, heads, head_dim]; k, v [tokens, kv_heads, head_dim]; kv is the page pool
        [pages, layers, 2, page_size, kv_heads, head_dim].
        """

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` of [tokens, 2 * dim], gate first -> [tokens, dim]."""

    def add_experts(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        router_logits: torch.Tensor,
        top_k: int,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> None:
        """Add the ``top_k`` experts' weighted outputs for ``x`` to ``out``, both [tokens, hidden].

        router_logits [tokens, experts]; weights are a float32 softmax over the chosen, cast to
        the compute dtype. gate_up [experts, 2 * dim, hidden]; down [experts, hidden, dim].
        """
