"""Where a step's time goes, by groups of kernels, and the least that each could take.

The floor of a group is the time to move its bytes once at the speed of a device copy. Routing is
taken to be uniform, as it is with random weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from decode.spread_table import Experts
from engine.model.config import ModelConfig

ITEM_BYTES, STATE_ITEM_BYTES = 2, 4
GROUPS: Mapping[str, tuple[str, ...]] = {
    "gate and up": ("gate_up_kernel", "_gate_up_kernel"),
    "down": ("_down_kernel",),
    "states": ("_update_kernel",),
    "dense": ("_linear_kernel", "_norm_linear_kernel", "_conv_linear_kernel"),
    "attention": ("_chunk_kernel", "_merge_kernel"),
    "rows out": ("_route_push_kernel",),
    "rows in": ("_agree_kernel", "_collect_kernel"),
    "results in": ("_take_up_kernel",),
}
REST = "the rest"
COPY_BYTES_PER_S = 4.3e12
"""A device copy on an H200."""


@dataclass(frozen=True)
class Group:
    """``us`` of a step that a group's kernels took, waits included; ``floor_us`` 0: nothing that
    is counted has to be moved."""

    us: float
    floor_us: float

    @property
    def times_floor(self) -> float | None:
        return round(self.us / self.floor_us, 2) if self.floor_us else None


def by_group(
    us_and_calls: Mapping[str, list[float]], floors: Mapping[str, float]
) -> dict[str, Group]:
    """``us_and_calls`` of a step are by kernel, ``floors`` in us by group."""
    us = dict.fromkeys((*GROUPS, REST), 0.0)
    for kernel, (took, _) in us_and_calls.items():
        us[next((group for group, names in GROUPS.items() if kernel in names), REST)] += took
    return {
        group: Group(round(took, 1), round(floors.get(group, 0.0), 1)) for group, took in us.items()
    }


def floors_us(
    config: ModelConfig, rows: int, num_tokens: int, sharing: int, context: int
) -> dict[str, float]:
    """Least time in µs of each group of kernels in a step, by the bytes that it reads: ``rows``
    tokens of one member, with ``context`` tokens of context each. ``num_tokens`` tokens of all
    members activate experts, which ``sharing`` members read."""
    layers, hidden = len(config.layers), config.hidden_size
    attention, deltanet, moe = config.attention, config.deltanet, config.moe
    num_linear = layers - config.num_attention_layers
    num_full = layers - num_linear
    distinct = Experts(moe.num_experts, moe.num_experts_per_tok).distinct(num_tokens) / sharing
    matrix = moe.moe_intermediate_size * hidden * ITEM_BYTES
    keys = deltanet.linear_num_key_heads * deltanet.linear_key_head_dim
    values = deltanet.linear_num_value_heads * deltanet.linear_value_head_dim
    state = values * deltanet.linear_key_head_dim
    heads, kv_heads = attention.num_attention_heads, attention.num_key_value_heads
    in_linear = hidden * (2 * keys + 2 * values + 2 * deltanet.linear_num_value_heads)
    in_full = hidden * attention.head_dim * (2 * heads + 2 * kv_heads)
    in_moe = hidden * (2 * moe.shared_expert_intermediate_size + moe.num_experts + 1)
    dense = (
        num_linear * (in_linear + values * hidden)
        + num_full * (in_full + heads * attention.head_dim * hidden)
        + layers * in_moe
        + config.vocab_size * hidden
    )
    kv = num_full * rows * context * 2 * kv_heads * attention.head_dim
    num_bytes = {
        "gate and up": layers * distinct * 2 * matrix,
        "down": layers * distinct * matrix,
        "states": num_linear * rows * 2 * state * STATE_ITEM_BYTES,
        "dense": dense * ITEM_BYTES,
        "attention": kv * ITEM_BYTES,
    }
    return {group: 1e6 * moved / COPY_BYTES_PER_S for group, moved in num_bytes.items()}
