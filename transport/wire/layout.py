"""The shape of a cache's pages and state slots, which both ends of a handoff must share."""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from transport.wire.errors import LayoutMismatch

CacheDtype = Literal["float32", "bfloat16"]
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2}

CHUNK_ALIGNMENT = 64
"""Prefill chunks end at multiples of this, counted from where their sequence begins, so that a
prompt computed in chunks gives the same numbers as the prompt computed at once (the DeltaNet kernel
works in blocks of 64)."""


SPARE_TOKENS = 64
"""Tokens that a ring of window pages can take beyond a window and a page."""


class CacheLayout(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Shape of one page and of one state slot; PoolSize has their numbers.

    A page is ``[num_attention_layers, 2, page_size, num_kv_heads, head_dim]`` of ``kv_dtype``
    (index 0 of the second axis is K, 1 is V) and contiguous, so a handoff copies whole pages.
    A state slot is a conv state ``[num_deltanet_layers, conv_channels, conv_state_len]`` of
    ``kv_dtype`` and a recurrent state ``[num_deltanet_layers, num_v_heads, k_dim, v_dim]``,
    always float32 (bf16 recurrent state loses accuracy on this model).

    Attention layers within a ``window`` have no part in pages, since they read the last tokens of
    a sequence only. Their K and V are part of its state: ``ring_pages`` *window pages*, each as a
    page but of these ``num_window_layers`` layers. Page ``i`` of the sequence is window page
    ``i % ring_pages``, which is written again when no token to come can read it. Without DeltaNet
    layers and windows a state slot is empty.
    """

    kv_dtype: CacheDtype
    page_size: int
    num_attention_layers: int
    num_kv_heads: int
    head_dim: int
    num_deltanet_layers: int
    conv_channels: int
    conv_state_len: int
    num_v_heads: int
    k_dim: int
    v_dim: int
    num_window_layers: int = 0
    window: int = 0

    def __post_init__(self) -> None:
        if self.page_size < 1 or CHUNK_ALIGNMENT % self.page_size:
            raise ValueError(f"page_size: {self.page_size} does not divide {CHUNK_ALIGNMENT}")

    @property
    def page_shape(self) -> tuple[int, ...]:
        return (self.num_attention_layers, 2, self.page_size, self.num_kv_heads, self.head_dim)

    @property
    def conv_shape(self) -> tuple[int, ...]:
        return (self.num_deltanet_layers, self.conv_channels, self.conv_state_len)

    @property
    def recurrent_shape(self) -> tuple[int, ...]:
        return (self.num_deltanet_layers, self.num_v_heads, self.k_dim, self.v_dim)

    @property
    def window_page_shape(self) -> tuple[int, ...]:
        return (self.num_window_layers, *self.page_shape[1:])

    @property
    def ring_pages(self) -> int:
        """Number of window pages of a state slot."""
        return self.pages_for(self.window + SPARE_TOKENS) + 1 if self.num_window_layers else 0

    @property
    def page_bytes(self) -> int:
        return _product(self.page_shape) * DTYPE_BYTES[self.kv_dtype]

    @property
    def conv_bytes(self) -> int:
        return _product(self.conv_shape) * DTYPE_BYTES[self.kv_dtype]

    @property
    def recurrent_bytes(self) -> int:
        return _product(self.recurrent_shape) * DTYPE_BYTES["float32"]

    @property
    def window_page_bytes(self) -> int:
        return _product(self.window_page_shape) * DTYPE_BYTES[self.kv_dtype]

    @property
    def state_slot_bytes(self) -> int:
        return self.conv_bytes + self.recurrent_bytes + self.ring_pages * self.window_page_bytes

    @property
    def has_states(self) -> bool:
        """True if a sequence has a state beside its pages."""
        return self.num_deltanet_layers + self.num_window_layers > 0

    def num_window_pages(self, num_tokens: int) -> int:
        """Number of window pages, from the first on, that the state behind ``num_tokens`` tokens
        has."""
        return min(self.ring_pages, self.pages_for(num_tokens))

    def without_windows(self) -> "CacheLayout":
        """The same pages, and state slots without window pages."""
        return replace(self, num_window_layers=0, window=0)

    def num_slots(self, pools: "PoolSize") -> int:
        """Number of slots that have an epoch: the state slots and, if they are empty, a slot of a
        kept prefix for each page. So such prefixes leave all state slots to sequences."""
        return pools.num_state_slots + (0 if self.has_states else pools.num_pages)

    def pages_for(self, num_tokens: int) -> int:
        """Number of pages that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.page_size)

    def require_same(self, other: "CacheLayout", *, peer: str) -> None:
        """Raise LayoutMismatch naming every field in which ``other`` differs, with both values."""
        differences = [
            f"{name} {getattr(self, name)!r} here, {getattr(other, name)!r} at {peer}"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        ]
        if differences:
            raise LayoutMismatch("cache layout mismatch: " + "; ".join(differences))


class PoolSize(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many pages and state slots a worker's pools hold. ``num_work_pages``: window pages of no
    state slot, in which prompts are computed (engine/windows.py)."""

    num_pages: Annotated[int, Meta(ge=1, lt=2**31)]
    num_state_slots: Annotated[int, Meta(ge=1, lt=2**31)]
    num_work_pages: Annotated[int, Meta(ge=0, lt=2**31)] = 0


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for dim in shape:
        result *= dim
    return result
