"""The tensors over a cache region: the same views at the exporter and at the puller."""

from dataclasses import dataclass, replace

import torch

from transport.copy.region import PROBE, Region
from transport.wire.layout import CacheLayout, PoolSize

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class CacheTensors:
    """Views into one region. They keep its buffer alive, and are valid as long as it is.

    ``epochs`` [num_slots] int64, ``kv`` [num_pages, layers, 2, page_size, kv_heads,
    head_dim], ``conv`` [num_slots, layers, channels, state_len], ``recurrent``
    [num_slots, layers, v_heads, k_dim, v_dim] float32, ``windows`` [num_slots, ring_pages,
    layers, 2, page_size, kv_heads, head_dim]. ``window_pages`` are those of all slots, one behind
    the other, then the work pages. ``probe`` is the small cache behind the pools that only
    self-tests use; the probe itself has none.
    """

    epochs: torch.Tensor
    kv: torch.Tensor
    conv: torch.Tensor
    recurrent: torch.Tensor
    windows: torch.Tensor
    window_pages: torch.Tensor
    probe: "CacheTensors | None" = None

    @property
    def states(self) -> tuple[torch.Tensor, ...]:
        """The parts of state slots, each [num_slots, …]."""
        return self.conv, self.recurrent, self.windows

    def windows_of(self, state_slot: int, num_tokens: int) -> torch.Tensor:
        """The window pages of a state behind ``num_tokens`` tokens, a view."""
        return self.windows[state_slot, : -(-num_tokens // self.kv.shape[3])]

    @classmethod
    def over(cls, buffer: torch.Tensor, layout: CacheLayout, pools: PoolSize) -> "CacheTensors":
        """The views over ``buffer``, uint8 [size_bytes]; raises ValueError if it is too short."""
        region = Region.of(layout, pools)
        if buffer.dtype != torch.uint8 or buffer.numel() < region.size_bytes:
            raise ValueError(
                f"cache region: {buffer.numel()} bytes of {buffer.dtype}, "
                f"needs {region.size_bytes} of torch.uint8"
            )
        probe = cls._views(buffer[region.probe :], layout.without_windows(), PROBE)
        return replace(cls._views(buffer, layout, pools), probe=probe)

    @classmethod
    def _views(cls, buffer: torch.Tensor, layout: CacheLayout, pools: PoolSize) -> "CacheTensors":
        region = Region.without_probe(layout, pools)
        dtype = TORCH_DTYPES[layout.kv_dtype]
        slots, of_slots = layout.num_slots(pools), layout.num_slots(pools) * layout.ring_pages

        def view(offset: int, shape: tuple[int, ...], of: torch.dtype) -> torch.Tensor:
            num_bytes = torch.Size(shape).numel() * of.itemsize
            return buffer[offset : offset + num_bytes].view(of).view(shape)

        window_pages = view(
            region.windows, (of_slots + pools.num_work_pages, *layout.window_page_shape), dtype
        )
        return cls(
            epochs=view(region.epochs, (slots,), torch.int64),
            kv=view(region.kv, (pools.num_pages, *layout.page_shape), dtype),
            conv=view(region.conv, (slots, *layout.conv_shape), dtype),
            recurrent=view(region.recurrent, (slots, *layout.recurrent_shape), torch.float32),
            windows=window_pages[:of_slots].view(
                slots, layout.ring_pages, *layout.window_page_shape
            ),
            window_pages=window_pages,
        )
