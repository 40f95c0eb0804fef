"""Is this GPU fit to serve, and what does its memory hold? Asked before anything is loaded."""

from dataclasses import dataclass

import torch

from transport.layout import CacheLayout, PoolSize
from transport.region import PROBE, Region

MIN_CAPABILITY = (9, 0)
ACTIVATIONS_BYTES = 8 << 30
"""Kept free beside weights and pools: activations of the largest prefill batch, what graphs work
in, the libraries' workspaces."""
TABLE_BYTES = 10
"""Kept free for each id of each state slot: tables from the first request with penalties, bias or
min_tokens on."""
SAMPLED_BYTES = 54
"""Kept free for each id of each row that is sampled in one pass: 4 of logits; 29 of temporaries
where all rows want penalties, a long top_p and logprobs at once; the rest for the workspace of
sorts. With the tables 3.8 GiB for 256 sequences and 248,320 ids."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process sees. ``index`` counts in PCI order; ``uuid`` is the same in every
    process and container of the node."""

    index: int
    uuid: str


def visible_gpus() -> list[Gpu]:
    """Every GPU that CUDA offers here; raises ValueError when there is none. Needs
    CUDA_DEVICE_ORDER=PCI_BUS_ID, set before CUDA is first used. Takes no memory on any."""
    if not torch.cuda.is_available():
        built = torch.version.cuda
        raise ValueError(
            f"device: no usable CUDA GPU; torch {torch.__version__} is built for "
            f"{f'CUDA {built}, see nvidia-smi for the driver' if built else 'the CPU'}"
        )
    return [
        Gpu(index, f"GPU-{torch.cuda.get_device_properties(index).uuid}")
        for index in range(torch.cuda.device_count())
    ]


def named(wanted: str, gpus: list[Gpu]) -> list[Gpu]:
    """Those of ``gpus`` that ``wanted`` names by index or by the beginning of a UUID; all of them
    for "". Raises ValueError when it names none, or is the beginning of several."""
    found = [gpu for gpu in gpus if wanted == str(gpu.index)] or [
        gpu for gpu in gpus if gpu.uuid.lower().startswith(wanted.lower())
    ]
    if not found or (wanted and len(found) > 1):
        there = ", ".join(f"{gpu.index} = {gpu.uuid}" for gpu in gpus)
        raise ValueError(f"gpu: {wanted!r} names {len(found)} GPUs; visible are {there}")
    return found


def require_gpu(weight_bytes: int, share: int) -> None:
    """Raise ValueError unless the current GPU is new enough and has room for the weights, which
    is ``1 / share`` of it."""
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if capability < MIN_CAPABILITY:
        raise ValueError(
            f"device: {name} has compute capability {capability[0]}.{capability[1]}, "
            f"the kernels need {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} (Hopper) or newer"
        )
    free, total = torch.cuda.mem_get_info()
    ours = min(free, total // share)
    if weight_bytes + ACTIVATIONS_BYTES > ours:
        shared = f"; {share} workers share it, {_gib(total // share)} each" if share > 1 else ""
        raise ValueError(
            f"device: {name} has {_gib(free)} of {_gib(total)} free{shared}, the model needs "
            f"{_gib(weight_bytes)} of weights and {_gib(ACTIVATIONS_BYTES)} to work; "
            "nvidia-smi shows which processes hold the rest"
        )


def num_pages_that_fit(
    layout: CacheLayout,
    num_state_slots: int,
    *,
    num_ids: int,
    num_sampled: int,
    max_seq_len: int,
    share: int,
) -> int:
    """Pages for what is free now, after the weights, but no more than as many sequences as there
    are slots could fill. A pass samples from ``num_ids`` for up to ``num_sampled`` rows. Of a GPU
    that ``share`` workers have, each takes that part, whoever comes first. Raises ValueError when
    nothing is left."""
    free, total = free_bytes(), torch.cuda.mem_get_info()[1]
    if share > 1:
        free = min(free, total // share - torch.cuda.memory_reserved())
    probe_bytes = Region.without_probe(layout, PROBE).size_bytes
    slots_bytes = num_state_slots * (layout.state_slot_bytes + num_ids * TABLE_BYTES)
    left = free - ACTIVATIONS_BYTES - probe_bytes - num_sampled * num_ids * SAMPLED_BYTES
    num_pages = (left - slots_bytes) // layout.page_bytes
    if num_pages < 1:
        raise ValueError(
            f"num_state_slots: {num_state_slots} slots take {_gib(slots_bytes)} of the "
            f"{_gib(left)} left for the cache, and no page fits"
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


def graphs_plan(free_before: int, graphs: str) -> str:
    """More of the plan, once some ``graphs`` are there."""
    free = free_bytes()
    return f"{graphs} {_gib(free_before - free)}; {_gib(free)} left to work in"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
