"""Reads which layers have experts, for families that name the dense ones."""

from engine.model.fields import Fields
from engine.model.layers import Dense, Moe


def mlps(text: Fields, *, shared: bool, renormalised: bool) -> list[Dense | Moe]:
    """The MLP of each layer. ``shared``: the model has a shared expert. ``renormalised``: what an
    absent ``norm_topk_prob`` means."""
    # Released checkpoints name it num_experts, those that transformers 5 writes num_local_experts.
    listed = text.get("num_experts", None) is not None
    moe = Moe(
        num_experts=text.positive("num_experts" if listed else "num_local_experts"),
        num_experts_per_tok=text.positive("num_experts_per_tok"),
        moe_intermediate_size=text.positive("moe_intermediate_size"),
        shared_expert_intermediate_size=(
            text.positive("shared_expert_intermediate_size") if shared else 0
        ),
        norm_topk_prob=text.flag("norm_topk_prob", renormalised),
    )
    every = text.positive("decoder_sparse_step", 1)
    dense = set(text.get("mlp_only_layers", []))
    return [
        Dense(text.positive("intermediate_size")) if i in dense or (i + 1) % every else moe
        for i in range(text.positive("num_hidden_layers"))
    ]
