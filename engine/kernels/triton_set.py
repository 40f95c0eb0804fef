"""The Triton kernel set: CUDA, bfloat16, and the shapes that its kernels are made for.

Sums are left pending for the next norm to add (``add_rms_norm``), so split-K slices and the
experts' contributions need no launch of their own.
"""

import logging
from dataclasses import dataclass
from functools import cached_property

import torch

from engine.inputs import Inputs, Rows
from engine.kernels.attention import cudnn_attention, int8_attention
from engine.kernels.attention.cudnn_attention import CUDNN
from engine.kernels.attention.triton_attention_decode import AttentionWorkspace, attention_decode
from engine.kernels.attention.triton_attention_pieces import DeepRows, attention_in_pieces
from engine.kernels.attention.triton_attention_prefill import attention_prefill
from engine.kernels.attention.triton_rope_cache import cache_kv, rope_cache
from engine.kernels.batch.triton_prefill_plan import PrefillPlan
from engine.kernels.batch.triton_step_start import embed
from engine.kernels.delta.triton_conv import conv_qkv
from engine.kernels.delta.triton_conv_linear import conv_linear
from engine.kernels.delta.triton_delta_decode import DeltaWorkspace, delta_decode, ring_shape
from engine.kernels.delta.triton_delta_prefill import delta_prefill
from engine.kernels.delta.triton_gated_norm import gated_rms_norm
from engine.kernels.dense.triton_add_norm import add_rms_norm
from engine.kernels.dense.triton_draft_input import draft_input
from engine.kernels.dense.triton_gate_up import gate_up
from engine.kernels.dense.triton_linear import (
    MAX_STREAMED,
    float_linear,
    linear,
    linear_parts,
    prepared_of,
    split_of,
)
from engine.kernels.dense.triton_norm_linear import norm_linear, suits_norm_linear
from engine.kernels.experts.triton_moe import add_experts
from engine.kernels.formats.triton_fp8 import BLOCK_K
from engine.kernels.formats.triton_quantise import BLOCK, Prepared, Quantised
from engine.kernels.formats.triton_split import Split
from engine.kernels.interface import Activation, Pending
from engine.model.config import ModelConfig
from engine.model.layers import Attention
from engine.model.matrix import Matrix
from engine.model.weights import AttentionWeights, DeltaNetWeights, DenseWeights, MoeWeights
from transport.wire.layout import CacheLayout

log = logging.getLogger(__name__)

FP8_K = BLOCK_K.value
"""Number of columns of a weight in FP8 that share a scale."""


@dataclass
class RowsOnGpu:
    """The inputs of one kind of rows as int32, which the kernels read."""

    slots: torch.Tensor
    ends: torch.Tensor
    tables: torch.Tensor

    @classmethod
    def of(cls, rows: Rows) -> "RowsOnGpu":
        return cls(rows.state_slots.int(), rows.ends.int(), rows.block_tables.int())


class TritonKernels:
    """``Kernels`` of engine/kernels/interface.py by Triton; one stream uses it at a time."""

    prefill_block: int | None = None

    def __init__(self, config: ModelConfig, device: torch.device, max_rows: int) -> None:
        """``max_rows`` is the most decode rows of one pass."""
        self._config = config
        self._device = device
        self._max_rows = max_rows
        self._in_fp8 = config.quantization.source != "none"
        attention = config.attention
        group = attention.num_attention_heads // attention.num_key_value_heads
        is_fp8 = self._in_fp8 and not config.quantization.packs
        self.unmasked = CUDNN
        self.pieces_problem = ""
        """Why prompts behind deep contexts are not computed in pieces, or "": then ``unmasked``
        computes most of their attention."""
        if is_fp8 and int8_attention.supported(attention.head_dim, group):
            self.unmasked = int8_attention.INT8
        else:
            self.pieces_problem = cudnn_attention.unsupported(torch.bfloat16, attention.head_dim)
        mixers = [layer.mixer for layer in config.layers if isinstance(layer.mixer, Attention)]
        if not all(each.gated and each.window is None and each.scale is None for each in mixers):
            self.pieces_problem = "it is for gated attention to all tokens, by the default scale"
        elif group & (group - 1):
            self.pieces_problem = f"{group} heads per KV head are no power of two"

    @cached_property
    def _delta_workspace(self) -> DeltaWorkspace:
        config = self._config.deltanet
        return DeltaWorkspace.allocate(
            self._max_rows,
            config.linear_num_value_heads,
            config.linear_value_head_dim,
            self._device,
        )

    @cached_property
    def _attention_workspace(self) -> AttentionWorkspace:
        config = self._config.attention
        return AttentionWorkspace.allocate(
            self._max_rows, config.num_attention_heads, config.head_dim, self._device
        )

    def ring_shape(self, layout: CacheLayout) -> tuple[int, int]:
        return ring_shape(layout.num_v_heads, layout.v_dim)

    def embed(self, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return embed(ids, weight)

    def add_norm(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, Activation]:
        num_tokens, dim = hidden.shape
        prepared: Prepared | None = None
        if self._in_fp8 and num_tokens <= MAX_STREAMED:
            prepared = Split.empty(num_tokens, dim, 1, hidden.device)
        elif self._in_fp8 and dim % BLOCK == 0:
            prepared = Quantised.empty(num_tokens, dim, hidden.device)
        hidden, x = add_rms_norm(hidden, _parts(pending), norm, eps, prepared)
        return hidden, Activation(x, prepared)

    def linear_add(
        self, hidden: torch.Tensor, x: Activation, weight: Matrix
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # A mixer's programs compute parts of its output, so each group of columns has a scale.
        prepared = prepared_of(x, weight, x.tensor.shape[1] // FP8_K)
        return hidden, linear_parts(x.tensor, weight, prepared)

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
        n = inputs.num_decode
        heads, _, v_dim = recurrent.shape[1:]
        width = weights.conv.shape[0] + heads * (v_dim + 2)
        parts = []
        split = self._output_split(inputs, weights.out_proj, v_dim)
        quantised = self._quantised_output(inputs, weights.out_proj, v_dim)
        if inputs.decode:
            slots, ring, num_stored = self._rows(inputs, "decode").slots, None, 1
            if drafts := inputs.drafts:
                slots, ring, num_stored = drafts.state_slots, drafts.rings[layer], drafts.num_stored
            rows = x if n == x.tensor.shape[0] else Activation(x.tensor[:n])
            projected = conv_linear(
                rows.tensor, weights.in_proj, weights.conv, conv, slots, ring, num_stored,
                prepared=prepared_of(rows, weights.in_proj),
            )  # fmt: skip
            parts.append(
                delta_decode(
                    projected[:, :width],
                    weights.neg_exp_a,
                    weights.dt_bias,
                    weights.norm,
                    recurrent,
                    slots,
                    eps,
                    self._delta_workspace,
                    ring,
                    num_stored,
                    split=split,
                )
            )
        if inputs.prefill:
            rows = Activation(x.tensor[n:]) if n else x
            of_rows = prepared_of(rows, weights.in_proj)
            projected = linear(rows.tensor, weights.in_proj, of_rows)
            parts.append(
                self._deltanet_prefill(
                    projected[:, :width], weights, eps, conv, recurrent, inputs, quantised
                )
            )
        return _joined(parts, split or quantised)

    def _deltanet_prefill(
        self,
        projected: torch.Tensor,
        weights: DeltaNetWeights,
        eps: float,
        conv: torch.Tensor,
        recurrent: torch.Tensor,
        inputs: Inputs,
        quantised: Quantised | None,
    ) -> torch.Tensor:
        heads, k_dim, v_dim = recurrent.shape[1:]
        channels = weights.conv.shape[0]
        key_heads = (channels - heads * v_dim) // (2 * k_dim)
        _, z, b, a = projected.split_with_sizes((channels, heads * v_dim, heads, heads), dim=-1)
        rows, plan = self._rows(inputs, "prefill"), self._plan(inputs)
        q, k, v = conv_qkv(projected, weights.conv, conv, rows.slots, plan, key_heads, k_dim, v_dim)
        out = delta_prefill(
            q, k, v, b, a, weights.neg_exp_a, weights.dt_bias, recurrent, rows.slots, plan
        )
        return gated_rms_norm(out, z, weights.norm, eps, quantised)

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
        kv_heads, head_dim = kv.shape[-2:]
        heads = weights.out_proj.shape[1] // head_dim
        positions = self._before_rope(inputs)
        projected = linear(x.tensor, weights.in_proj, prepared_of(x, weights.in_proj))
        gate = projected[:, (2 * kv_heads + heads) * head_dim :] if weights.gated else None
        n = inputs.num_decode
        parts = []
        split = self._output_split(inputs, weights.out_proj, FP8_K)
        if inputs.decode:
            rows = self._rows(inputs, "decode")
            q = rope_cache(
                projected[:n], weights.kq_norm, inv_freq, positions[:n], None,
                rows.tables, kv, layer, eps, num_heads=heads, bias=weights.bias,
            )  # fmt: skip
            of_rows = None if gate is None else gate[:n]
            parts.append(
                attention_decode(
                    q, of_rows, kv, layer, rows.tables, rows.ends, self._attention_workspace,
                    split=split, scale=weights.scale, window=weights.window,
                    shared=None if weights.window else inputs.decode.shared,
                )
            )  # fmt: skip
        if inputs.prefill:
            rows, plan = self._rows(inputs, "prefill"), self._plan(inputs)
            q = rope_cache(
                projected[n:], weights.kq_norm, inv_freq, positions[n:], plan.token_rows,
                rows.tables, kv, layer, eps, num_heads=heads, bias=weights.bias,
            )  # fmt: skip
            of_rows, deep = None if gate is None else gate[n:], self._deep_rows(inputs)
            of = kv, layer, rows.tables, plan
            if deep is not None and of_rows is not None:
                parts.append(attention_in_pieces(q, of_rows, *of, deep, self.unmasked))
            else:
                parts.append(
                    attention_prefill(q, of_rows, *of, scale=weights.scale, window=weights.window)
                )
        return _joined(parts, split)

    @torch.inference_mode()
    def plan_pieces(self, kv: torch.Tensor) -> None:
        """Use each shape of a piece once, so that no request waits for cuDNN's plans or for a
        compilation; if a shape is refused, Triton computes all of them. Only the first page of
        ``kv`` is read."""
        if self.pieces_problem:
            return
        config, cut = self._config.attention, self.unmasked.cut
        start, num_new = cut.deepest
        heads, dim, device = config.num_attention_heads, config.head_dim, self._device
        plan = PrefillPlan.of([start], [num_new], device)
        num_pages = -(-(start + num_new) // kv.shape[3])
        tables = torch.zeros(1, num_pages, dtype=torch.int32, device=device)
        q = torch.zeros(num_new, heads, dim, dtype=kv.dtype, device=device)
        rows = DeepRows.of([start], [num_new], cut, device)
        try:
            attention_in_pieces(q, q.flatten(1), kv, 0, tables, plan, rows, self.unmasked)
        except RuntimeError as error:
            name = self.unmasked.name
            self.pieces_problem = f"{name} refuses its shapes: {error}"
            log.warning(
                "attention of prompts behind deep contexts: Triton, not %s: %s", name, error
            )

    def draft_input(
        self,
        ids: torch.Tensor,
        embed: torch.Tensor,
        hidden: torch.Tensor,
        embedding_norm: torch.Tensor,
        hidden_norm: torch.Tensor,
        eps: float,
    ) -> Activation:
        return Activation(draft_input(ids, embed, hidden, embedding_norm, hidden_norm, eps))

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
        assert weights.bias is None, "no draft layer has a bias"
        kv_heads, head_dim = kv.shape[-2:]
        weight = weights.in_proj.first(2 * kv_heads * head_dim)
        positions, n = self._before_rope(inputs), inputs.num_decode
        projected = linear(x.tensor, weight, split_of(x, weight))
        if inputs.decode:
            cache_kv(
                projected[:n], weights.kq_norm, inv_freq, positions[:n], None,
                self._rows(inputs, "decode").tables, kv, layer, eps,
            )  # fmt: skip
        if inputs.prefill:
            cache_kv(
                projected[n:], weights.kq_norm, inv_freq, positions[n:],
                self._plan(inputs).token_rows, self._rows(inputs, "prefill").tables,
                kv, layer, eps,
            )  # fmt: skip

    def moe_in(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: MoeWeights,
    ) -> tuple[torch.Tensor, Activation, torch.Tensor]:
        """The results of ``add_norm``, and the norm's product with ``in_proj`` as slices to be
        added."""
        parts, weight = _parts(pending), weights.in_proj
        shared_dim = weights.shared_down.shape[1]
        width = 2 * shared_dim + weights.gate_up.shape[0] + (shared_dim > 0)
        if parts is not None and suits_norm_linear(hidden, weight):
            hidden, normed, projected = norm_linear(hidden, parts, norm, eps, weight)
            x = Activation(normed)
        else:
            hidden, x = self.add_norm(hidden, pending, norm, eps)
            projected = linear_parts(x.tensor, weight, prepared_of(x, weight))
        return hidden, x, projected[..., :width]

    def moe_add(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: MoeWeights,
        top_k: int,
        inputs: Inputs,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, x, projected = self.moe_in(hidden, pending, norm, eps, weights)
        return add_experts(hidden, x, projected, weights, top_k, inputs.live)

    def dense_add(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: DenseWeights,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, x = self.add_norm(hidden, pending, norm, eps)
        weight, down = weights.gate_up, weights.down
        h = gate_up(x.tensor, weight, weights.activation, prepared_of(x, weight))
        parts = linear_parts(h, down, split_of(Activation(h), down))
        if weights.out_norm is None:
            return hidden, parts
        return hidden, add_rms_norm(torch.zeros_like(hidden), parts, weights.out_norm, eps)[1]

    def final_norm(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        index: torch.Tensor | None,
    ) -> torch.Tensor:
        parts = _parts(pending)
        if index is not None:
            hidden = hidden.index_select(0, index)
            parts = None if parts is None else parts.index_select(-2, index)
        return add_rms_norm(hidden, parts, norm, eps)[1]

    def logits(
        self,
        hidden: torch.Tensor,
        lm_head: Matrix,
        num_ids: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return float_linear(hidden, lm_head, num_ids, out)

    def _output_split(self, inputs: Inputs, weight: Matrix, columns: int) -> Split | None:
        """Memory for the split of a mixer's output, in groups of ``columns`` columns. None if there
        are prefill rows, or if the product with ``weight`` takes no such groups."""
        num_tokens, k = inputs.num_decode, weight.shape[1]
        if inputs.prefill or not weight.num_fp8 or num_tokens > MAX_STREAMED or columns != FP8_K:
            return None
        return Split.empty(num_tokens, k, k // columns, self._device)

    def _quantised_output(self, inputs: Inputs, weight: Matrix, columns: int) -> Quantised | None:
        """Memory for a mixer's output in FP8, in groups of ``columns`` columns. None if there are
        decode rows or few tokens, or if the product with ``weight`` takes no such groups."""
        if inputs.decode or inputs.prefill is None or not weight.num_fp8 or columns != BLOCK:
            return None
        num_tokens = self._plan(inputs).num_tokens
        if num_tokens <= MAX_STREAMED:
            return None
        return Quantised.empty(num_tokens, weight.shape[1], self._device)

    def _before_rope(self, inputs: Inputs) -> torch.Tensor:
        """Positions as int32. ``rope_cache`` reads them, and the tables of decode rows, while its
        predecessor runs: the predecessor must not be the kernel that makes them."""
        if inputs.decode:
            self._rows(inputs, "decode")
        return inputs.once("positions", inputs.positions.int)

    def _rows(self, inputs: Inputs, kind: str) -> RowsOnGpu:
        rows = inputs.decode if kind == "decode" else inputs.prefill
        assert rows is not None, kind
        name = f"{kind} in windows" if rows.windowed else kind
        return inputs.once(name, lambda: RowsOnGpu.of(rows))

    def _deep_rows(self, inputs: Inputs) -> DeepRows | None:
        """The prefill rows, if their attention is computed in pieces."""
        rows = inputs.prefill
        assert rows is not None
        cut = self.unmasked.cut
        if self.pieces_problem or not cut.suits(rows.starts, rows.lens):
            return None
        of = rows.starts, rows.lens, cut, self._device
        return inputs.once("deep rows", lambda: DeepRows.of(*of))

    def _plan(self, inputs: Inputs) -> PrefillPlan:
        rows = inputs.prefill
        assert rows is not None, "a plan without prefill rows"
        return inputs.once(
            "plan",
            lambda: PrefillPlan.of(rows.starts, rows.lens, self._device, keeps=rows.keeps),
        )


def _parts(pending: Pending) -> torch.Tensor | None:
    assert pending is None or isinstance(pending, torch.Tensor), "another set's"
    return pending


def _joined(parts: list[torch.Tensor], prepared: Prepared | None) -> Activation:
    """A mixer's output, joined from decode and prefill rows; ``prepared``: what the next product
    reads instead, if it has been made."""
    return Activation(parts[0] if len(parts) == 1 else torch.cat(parts), prepared)
