"""The state ring: updates of a DeltaNet layer's state by a step's uncertain tokens, per state slot.

A step that verifies drafts stores the state after its first token, which is certain. A step that
several workers compute together (engine/spread) may abort, so none of its tokens is certain, and it
stores the state before them. For every token behind the stored state the ring keeps the conv's
input and the operands of its update of the recurrent state. Once it is known how many of these
tokens are accepted, ``pending`` has that number, and the next step applies that many entries before
its own tokens. So a rejected draft or an aborted step leaves no trace in the state, and a token's
bits do not depend on the number of drafts: the same updates happen in the same order. The idea is
ReplaySSM's (vLLM RFC 49232).
"""

from dataclasses import dataclass

import torch

from transport.wire.layout import CacheLayout


@dataclass(frozen=True)
class StateRing:
    """One layer's ring. ``inputs`` [state slots, entries, channels] in the compute dtype;
    ``updates`` [state slots, parts, entries, numbers] float32, in the kernel set's own order;
    ``pending`` [state slots] int32, shared by all layers."""

    inputs: torch.Tensor
    updates: torch.Tensor
    pending: torch.Tensor

    @classmethod
    def allocate(
        cls,
        layout: CacheLayout,
        num_entries: int,
        update_shape: tuple[int, int],
        dtype: torch.dtype,
        pending: torch.Tensor,
    ) -> "tuple[StateRing, ...]":
        """A ring for each layer, with ``num_entries`` entries for each state slot in ``pending``;
        ``update_shape`` is (parts, numbers)."""
        (parts, numbers), num_slots = update_shape, pending.shape[0]
        layers, device = range(layout.num_deltanet_layers), pending.device
        shapes = (
            (num_slots, num_entries, layout.conv_channels),
            (num_slots, parts, num_entries, numbers),
        )
        return tuple(
            cls(
                torch.zeros(shapes[0], dtype=dtype, device=device),
                torch.zeros(shapes[1], dtype=torch.float32, device=device),
                pending,
            )
            for _ in layers
        )


def ring_bytes(layout: CacheLayout, num_entries: int) -> int:
    """The most bytes that rings take per state slot, with any kernel set."""
    per_head = 2 * layout.k_dim + layout.v_dim + 64
    per_entry = 4 * (layout.conv_channels + layout.num_v_heads * per_head)
    return layout.num_deltanet_layers * num_entries * per_entry
