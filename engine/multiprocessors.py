"""How many multiprocessors of a GPU a stream has: all, or a part of a divided GPU."""

from functools import cache

import torch

_parts: dict[int, int] = {}
"""How many the streams of parts have, by the address of the stream."""


def note_part(stream: torch.cuda.Stream, num: int) -> None:
    """Let kernels on ``stream`` know that they have ``num`` multiprocessors."""
    _parts[stream.cuda_stream] = num


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors that the current stream has; 1 on a CPU."""
    if device.type != "cuda":
        return 1
    if part := _parts.get(torch.cuda.current_stream(device).cuda_stream):
        return part
    return _all(device)


@cache
def _all(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
