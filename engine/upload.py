"""Copies from the host to the device without waiting for work under way on the device."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

ALIGNMENT_BYTES = 16
"""Alignment of all parts: Triton compiles a kernel again for pointers with another alignment."""
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64}


def upload(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy ``host`` to ``device``, ordered on the current stream.

    A copy from pageable memory ends only after all work enqueued before it: the host would wait for
    the step under way. It does not wait for a copy from pinned memory, and torch does not reuse
    that memory before the copy is done. On the CPU this returns ``host`` itself.
    """
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def upload_parts(
    parts: Sequence[Sequence[int] | np.ndarray], dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """Each part as a vector of ``dtype`` on ``device``, by one transfer; all equally aligned."""
    starts = aligned_starts([len(part) for part in parts], dtype)
    host = np.zeros(starts.pop(), dtype=_NUMPY[dtype])
    for start, part in zip(starts, parts, strict=True):
        host[start : start + len(part)] = part
    flat = upload(torch.from_numpy(host), device)
    return [flat[start : start + len(part)] for start, part in zip(starts, parts, strict=True)]


def aligned_starts(lengths: Sequence[int], dtype: torch.dtype) -> list[int]:
    """Aligned offsets of parts of these lengths one after another, and the end of the last."""
    unit = ALIGNMENT_BYTES // dtype.itemsize
    return [0, *accumulate(-(-length // unit) * unit for length in lengths)]


def reserve_pinned() -> None:
    """Make torch's allocator hold pinned memory for all uploads that can be under way at once.

    Taking more from the driver waits for the step under way, which costs the loop milliseconds.
    """
    sizes = [1 << power for power in range(3, 19)]
    blocks = [
        torch.empty(size, dtype=torch.uint8, pin_memory=True)
        for size in sizes
        for _ in range(512 if size <= 64 else 32)
    ]
    del blocks
