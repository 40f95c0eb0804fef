"""Is this GPU fit to serve, and what does its memory hold? Asked before anything is loaded."""

import torch

from transport.layout import CacheLayout, PoolSize

MIN_CAPABILITY = (9, 0)
ACTIVATIONS_BYTES = 8 << 30
"""Kept free beside weights and pools: activations of the largest prefill batch, the graphs'
logits, the libraries' workspaces."""


def require_gpu(weight_bytes: int) -> None:
    """Raise ValueError unless a GPU is there, new enough, and has room for the weights."""
    if not torch.cuda.is_available():
        built = torch.version.cuda
        raise ValueError(
            f"device: no usable CUDA GPU; torch {torch.__version__} is built for "
            f"{f'CUDA {built}, see nvidia-smi for the driver' if built else 'the CPU'}"
        )
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if capability < MIN_CAPABILITY:
        raise ValueError(
            f"device: {name} has compute capability {capability[0]}.{capability[1]}, "
            f"the kernels need {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} (Hopper) or newer"
        )
    free, total = torch.cuda.mem_get_info()
    if weight_bytes + ACTIVATIONS_BYTES > free:
        raise ValueError(
            f"device: {name} has {_gib(free)} of {_gib(total)} free, the model needs "
            f"{_gib(weight_bytes)} of weights and {_gib(ACTIVATIONS_BYTES)} to work"
        )


def num_pages_that_fit(layout: CacheLayout, num_state_slots: int, max_seq_len: int) -> int:
    """Pages for what is free now, after the weights, but no more than as many sequences as there
    are slots could fill. Raises ValueError when nothing is left."""
    free = free_bytes()
    slots_bytes = num_state_slots * layout.state_slot_bytes
    num_pages = (free - ACTIVATIONS_BYTES - slots_bytes) // layout.page_bytes
    if num_pages < 1:
        raise ValueError(
            f"num_state_slots: {num_state_slots} slots take {_gib(slots_bytes)} of the "
            f"{_gib(free - ACTIVATIONS_BYTES)} left for the cache, and no page fits"
        )
    return min(int(num_pages), num_state_slots * layout.pages_for(max_seq_len))


def memory_plan(weight_bytes: int, layout: CacheLayout, pools: PoolSize) -> str:
    """The plan in one line, for the log."""
    pages = pools.num_pages * layout.page_bytes
    slots = pools.num_state_slots * layout.state_slot_bytes
    return (
        f"weights {_gib(weight_bytes)}; {pools.num_pages} pages {_gib(pages)} = "
        f"{pools.num_pages * layout.page_size} tokens; {pools.num_state_slots} state slots "
        f"{_gib(slots)} = that many sequences"
    )


def free_bytes() -> int:
    """What neither torch nor anyone else holds of the GPU's memory."""
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def graphs_plan(free_before: int, num_graphs: int) -> str:
    """The rest of the plan, once the decode graphs are there."""
    free = free_bytes()
    return f"{num_graphs} decode graphs {_gib(free_before - free)}; {_gib(free)} left to work in"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
