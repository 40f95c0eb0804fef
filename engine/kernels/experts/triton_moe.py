"""Experts of the Triton set, behind a norm and its product with ``MoeWeights.in_proj``.

Routing, then each kernel set of experts where it is fastest: by the number of tokens, and by the
weights' format. A shared expert as large as the others is computed with them; one of another size
by itself.

Reference: decoder.moe; test: tests/kernels/sets/test_cuda_path_families.py, test_triton_moe.py.
"""

import torch

from engine.kernels.dense.triton_linear import MAX_STREAMED, linear_parts, quantised_of, split_of
from engine.kernels.experts.hopper_experts import experts_hopper, suits
from engine.kernels.experts.triton_experts import experts
from engine.kernels.experts.triton_experts_fp8 import experts_fp8
from engine.kernels.experts.triton_experts_nvfp4 import experts_nvfp4
from engine.kernels.experts.triton_experts_prefill import experts_prefill
from engine.kernels.experts.triton_route import route, route_shared
from engine.kernels.formats.triton_fp8 import widened_rows
from engine.kernels.formats.triton_nvfp4 import widened_experts
from engine.kernels.interface import Activation
from engine.model.matrix import Matrix
from engine.model.packed_experts import PackedExperts
from engine.model.weights import Experts, MoeWeights

MAX_STREAMED_TOKENS = 512
MAX_UNPACKED_TOKENS = 4096
"""The most tokens of a pass that multiplies packed experts (NVFP4, int4, int8) as they are. It
unpacks them once per 32 tokens of an expert; for more tokens it takes less time to dequantise all
experts first. Graphs of prompts have no more tokens, so none holds memory for dequantised
experts."""


def add_experts(
    hidden: torch.Tensor,
    normed: Activation,
    projected: torch.Tensor,
    weights: MoeWeights,
    top_k: int,
    live: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``hidden`` [tokens, hidden], and summands [parts, tokens, hidden] to be added to it: the
    experts' contributions. ``normed``: the experts' input; ``projected`` [(parts,) tokens, rows]:
    its product with ``in_proj``, without rows of padding. ``live``: as in ``route``."""
    x, w_in, w_out = normed.tensor, weights.gate_up, weights.down
    shared_down, shared, together, apart = weights.shared_down, None, None, None
    renormalised = weights.renormalised
    if shared_down.shape[1]:
        ids, chosen, shared = route_shared(
            projected, w_in.shape[0], top_k, x.dtype, live, renormalised=renormalised
        )
    else:
        ids, chosen = route(projected, top_k, live, renormalised=renormalised)
    most = MAX_UNPACKED_TOKENS if isinstance(w_in, PackedExperts) else MAX_STREAMED_TOKENS
    streamed = x.shape[0] <= most
    if shared is not None and streamed and shared_down.shape[1] == w_out.shape[2]:
        together = shared, shared_down
    elif shared is not None and streamed and x.shape[0] <= MAX_STREAMED:
        apart = linear_parts(shared, shared_down, split_of(Activation(shared), shared_down))
    elif shared is not None:
        hidden = torch.addmm(hidden, shared, widened_rows(shared_down).t())
    if isinstance(w_in, PackedExperts):
        if streamed:
            y = experts_nvfp4(x, ids, chosen, w_in, nvfp4(w_out), together)
        else:
            gate_up, down = (widened_experts(each, x.dtype) for each in (w_in, nvfp4(w_out)))
            y = experts_prefill(x, ids, chosen, gate_up, down)
    elif streamed:
        split = split_of(normed, w_in)
        y = experts(x, ids, chosen, w_in, plain(w_out), together, split=split)
    else:
        y = _of_prompts(normed, ids, chosen, w_in, plain(w_out))
    return hidden, y if apart is None else torch.cat((y, apart.to(y.dtype)))


def _of_prompts(
    normed: Activation,
    ids: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: Matrix,
    down: Matrix,
) -> torch.Tensor:
    """The experts' contributions to many tokens, by the fastest kernels for the weights."""
    x = normed.tensor
    if not gate_up.num_fp8:
        return experts_prefill(x, ids, chosen, gate_up, down)
    of_fp8 = experts_hopper if suits(x, gate_up, down) else experts_fp8
    return of_fp8(x, ids, chosen, gate_up, down, quantised_x=quantised_of(normed))


def nvfp4(of: Experts) -> PackedExperts:
    """Experts beside others in NVFP4, int4 or int8."""
    assert isinstance(of, PackedExperts), "experts of both kinds"
    return of


def plain(of: Experts) -> Matrix:
    """Experts beside others that are in neither."""
    assert isinstance(of, Matrix), "experts of both kinds"
    return of
