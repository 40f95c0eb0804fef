"""From the host to the device without waiting for what the device is doing."""

from collections.abc import Sequence

import torch

ALIGNMENT_BYTES = 16
"""Kernels are compiled anew for pointers that are aligned otherwise."""


def upload(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``host`` on ``device``, ordered on the current stream.

    A copy from pageable memory ends only when everything enqueued before it has: the host would
    stand still for the step under way. From pinned memory it does not, and torch gives that to
    nobody else before the copy is done. On the CPU it is ``host`` itself.
    """
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def upload_parts(
    parts: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """Each part as a vector of ``dtype`` on ``device``, by one transfer; all equally aligned."""
    unit = ALIGNMENT_BYTES // dtype.itemsize
    lens = [len(part) for part in parts]
    padding = [-length % unit for length in lens]
    values = [
        value for part, gap in zip(parts, padding, strict=True) for value in (*part, *((0,) * gap))
    ]
    flat = upload(torch.tensor(values, dtype=dtype), device)
    spans = flat.split_with_sizes([a + b for a, b in zip(lens, padding, strict=True)])
    return [span[:length] for span, length in zip(spans, lens, strict=True)]


def reserve_pinned() -> None:
    """Have torch hold pinned memory for every upload that may be on its way at once.

    Taking more from the driver waits for the step under way: milliseconds, in a loop that should
    never stand still.
    """
    sizes = [1 << power for power in range(3, 17)]
    blocks = [
        torch.empty(size, dtype=torch.uint8, pin_memory=True)
        for size in sizes
        for _ in range(512 if size <= 64 else 32)
    ]
    del blocks
