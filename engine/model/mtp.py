"""The draft layer (multi-token prediction), which guesses the token after next.

    x_t = fc([norm(embed(id_{t+1})), norm(h_t)]);   x_t += attention(norm(x_t));   x_t += moe(...)
    draft of id_{t+2} = lm_head(norm(x_t))

A token's KV depends only on the layer's work before attention. So a pass that makes no drafts only
writes the KV (``draft_kv``), some 1 / 6 of the layer's work, and so do the tokens before a
sequence's last one.

h is the trunk's hidden state after its final norm; for a second draft, the layer's own. Embedding
and lm_head are the trunk's. The layer's KV is the last layer of the page pool. Source: the
checkpoint's ``mtp.*`` tensors, and DeepSeek-V3's report, section 2.2, whose layer this is.
"""

from dataclasses import dataclass

import torch

from engine.inputs import Inputs
from engine.kernels.interface import Activation, Kernels
from engine.model.model import Model
from engine.model.weights import AttentionWeights, MoeWeights, MtpWeights
from transport.copy.tensors import CacheTensors


@dataclass(frozen=True)
class Chosen:
    """Some tokens of a pass: their int64 ``index`` in it, and their inputs as decode rows."""

    index: torch.Tensor
    inputs: Inputs


def draft_hidden(
    model: Model,
    ids: torch.Tensor,
    hidden: torch.Tensor,
    inputs: Inputs,
    cache: CacheTensors,
    kernels: Kernels,
    chosen: Chosen | None = None,
) -> torch.Tensor:
    """Normed hidden states [tokens, hidden], whose logits draft the tokens after ``ids``; only of
    the ``chosen`` tokens, if given.

    ids [tokens]: for each position of ``inputs``, the token that follows it. hidden [tokens,
    hidden]: the trunk's (or this function's) state at the position itself. Writes the layer's KV.
    """
    eps, (mtp, mixer) = model.config.rms_norm_eps, _layer(model)
    layer, last = mtp.layer, cache.kv.shape[1] - 1
    x, y = _entered(model, ids, hidden, kernels)
    if chosen is not None:
        kernels.write_kv(y, mixer, eps, mixer.inv_freq, cache.kv, last, inputs)
        x, y = x.index_select(0, chosen.index), Activation(y.tensor.index_select(0, chosen.index))
        inputs = chosen.inputs
    mixed = kernels.attention(y, mixer, eps, mixer.inv_freq, cache.kv, last, inputs)
    x, pending = kernels.linear_add(x, mixed, mixer.out_proj)
    mlp, norm = layer.mlp, layer.post_norm
    if isinstance(mlp, MoeWeights):
        x, pending = kernels.moe_add(x, pending, norm, eps, mlp, mlp.top_k, inputs)
    else:
        x, pending = kernels.dense_add(x, pending, norm, eps, mlp)
    return kernels.final_norm(x, pending, mtp.norm, eps, None)


def draft_kv(
    model: Model,
    ids: torch.Tensor,
    hidden: torch.Tensor,
    inputs: Inputs,
    cache: CacheTensors,
    kernels: Kernels,
) -> None:
    """Write only the KV that ``draft_hidden`` writes."""
    eps = model.config.rms_norm_eps
    _, mixer = _layer(model)
    _, y = _entered(model, ids, hidden, kernels)
    last = cache.kv.shape[1] - 1
    kernels.write_kv(y, mixer, eps, mixer.inv_freq, cache.kv, last, inputs)


def _layer(model: Model) -> tuple[MtpWeights, AttentionWeights]:
    mtp = model.weights.mtp
    assert mtp is not None, "drafts without a draft layer"
    assert isinstance(mtp.layer.mixer, AttentionWeights), "a draft layer attends"
    return mtp, mtp.layer.mixer


def _entered(
    model: Model, ids: torch.Tensor, hidden: torch.Tensor, kernels: Kernels
) -> tuple[torch.Tensor, Activation]:
    """The input of the layer [tokens, hidden], and its norm."""
    weights, eps = model.weights, model.config.rms_norm_eps
    mtp, _ = _layer(model)
    norms = mtp.embedding_norm, mtp.hidden_norm
    both = kernels.draft_input(ids, weights.embed, hidden, *norms, eps)
    x, pending = kernels.linear_add(torch.zeros_like(hidden), both, mtp.fc)
    return kernels.add_norm(x, pending, mtp.layer.input_norm, eps)
