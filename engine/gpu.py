"""Checks the GPU, and plans its memory, before anything is loaded."""

import logging
from dataclasses import dataclass

import torch

from engine.config import PROMPT_TOKENS, SAMPLED_AT_ONCE, EngineConfig, step_tokens
from engine.errors import GpuMemoryHeld
from engine.gpu_arch import arch_number, arch_problem, unmeasured
from engine.window_pages import num_work_pages
from transport.copy.region import Region
from transport.wire.layout import CacheLayout, PoolSize

log = logging.getLogger(__name__)

WORKING_BYTES = 768 << 20
"""Memory kept free beside weights and pools, for graphs and the libraries' workspaces."""
WORKING_BYTES_PER_TOKEN = 928 << 10
"""Memory kept free for each token of the largest prompt pass, for its activations."""
DEFAULT_SLOTS = 256
"""Number of state slots if there is memory for them."""
TYPICAL_TOKENS = 2048
"""Tokens of a typical sequence: another state slot is useless if it leaves each sequence fewer."""
TABLE_BYTES = 10
"""Bytes kept free for each id of each state slot: tables of penalties, which the warm-up makes, of
bias and of min_tokens, which the first request that needs them makes."""
LOGITS_BYTES = 4
"""Bytes of each id of each row sampled in one pass; twice that with drafts, because a step with
drafts copies the logits that it samples."""
SAMPLED_BYTES = 24
"""Bytes kept free for each id of each row sampled at once: twice what rows with penalties, a long
top_p and logprobs take, because torch keeps blocks of several sizes."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process sees. ``index`` counts in PCI order; ``uuid`` is the same in every
    process and container of the node."""

    index: int
    uuid: str


def visible_gpus() -> list[Gpu]:
    """Every GPU that CUDA offers here; raises ValueError if there is none. Needs
    CUDA_DEVICE_ORDER=PCI_BUS_ID, set before CUDA is first used. Takes no GPU memory."""
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


def gpu_name(device: str, gpu: str) -> str:
    """The name of the requested GPU, "" for any; raises ValueError if the two settings differ."""
    _, colon, number = device.partition(":")
    if colon and not (device.startswith("cuda:") and number.isdecimal()):
        raise ValueError(f"device: {device!r} is not auto, cpu, cuda or cuda:N")
    if number and gpu and gpu != number:
        raise ValueError(f"gpu: {gpu!r} was asked for, and by device {device!r}")
    return gpu or number


def named(wanted: str, gpus: list[Gpu]) -> list[Gpu]:
    """The GPUs that ``wanted`` names by index or by the beginning of a UUID; all of ``gpus`` for
    "". Raises ValueError if it names none or several."""
    found = [gpu for gpu in gpus if wanted == str(gpu.index)] or [
        gpu for gpu in gpus if gpu.uuid.lower().startswith(wanted.lower())
    ]
    if not found or (wanted and len(found) > 1):
        there = ", ".join(f"{gpu.index} = {gpu.uuid}" for gpu in gpus)
        raise ValueError(f"gpu: {wanted!r} names {len(found)} GPUs; visible are {there}")
    return found


@dataclass(frozen=True)
class GpuPart:
    """What an engine may take of its GPU: ``1 / share`` of the memory, in any order of starts. No
    more than ``limit_bytes`` of the GPU's memory count (None: all). The engine's largest pass has
    ``max_prompt_tokens`` prompt tokens."""

    share: int = 1
    limit_bytes: int | None = None
    max_prompt_tokens: int = PROMPT_TOKENS

    @classmethod
    def of(cls, config: EngineConfig) -> "GpuPart":
        limit = None if config.gpu_memory is None else int(config.gpu_memory * 2**30)
        return cls(config.gpu_share, limit, config.max_prompt_tokens)

    @property
    def working_bytes(self) -> int:
        """Bytes to keep free beside weights and pools."""
        return WORKING_BYTES + self.max_prompt_tokens * WORKING_BYTES_PER_TOKEN

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the whole GPU, as if it had ``limit_bytes``, with all that other
        processes hold."""
        free, total = torch.cuda.mem_get_info()
        counted = min(total, self.limit_bytes or total)
        return max(0, counted - (total - free)), counted

    def free_bytes(self) -> int:
        """Bytes of the part that are not used yet, by this worker or by another process."""
        torch.cuda.empty_cache()
        free, total = self.memory()
        if self.share == 1:
            return free
        return min(free, total // self.share - torch.cuda.memory_reserved())

    def hold(self) -> None:
        """Let torch fail rather than allocate more than ``limit_bytes`` with what is allocated
        otherwise, such as the pools, which must be there."""
        if self.limit_bytes is None:
            return
        free, total = torch.cuda.mem_get_info()
        others = total - free - torch.cuda.memory_reserved()
        fraction = (min(total, self.limit_bytes) - others) / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, fraction)))


def require_gpu(
    weight_bytes: int, part: GpuPart, advice: str = "", *, quantised: bool = False
) -> None:
    """Check that the current GPU is new enough, for ``quantised`` weights if so, and large enough
    for weights in ``part`` of its memory. Raises ValueError otherwise, or GpuMemoryHeld if other
    processes hold too much of it, such as a worker that has just ended. ``advice``: what to do
    about weights that are too large. Logs a warning on a GPU on which Baton was not measured."""
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    arch = arch_number(capability)
    known = f"{name} has compute capability {capability[0]}.{capability[1]}"
    if problem := arch_problem(arch, quantised=quantised):
        raise ValueError(f"device: {known}, {problem}")
    if warning := unmeasured(arch):
        log.warning("device: %s: %s", known, warning)
    (free, total), share = part.memory(), part.share
    wanted = weight_bytes + part.working_bytes
    shared = f"; {share} workers share it, {_gib(total // share)} each" if share > 1 else ""
    numbers = (
        f"device: {name} has {_gib(free)} of {_gib(total)} free{shared}, the model needs "
        f"{_gib(weight_bytes)} of weights and {_gib(part.working_bytes)} to work with up to "
        f"{part.max_prompt_tokens} prompt tokens a batch (max_batch_tokens)"
    )
    if wanted > total // share:
        raise ValueError(f"{numbers}{advice}")
    if wanted > free:
        raise GpuMemoryHeld(f"{numbers}; nvidia-smi shows which processes hold the rest")


@dataclass(frozen=True)
class CacheDemand:
    """What the size of an engine's cache depends on, beside its layout.

    A pass samples from ``num_ids`` ids for up to ``max_sampled`` rows.
    """

    layout: CacheLayout
    num_ids: int
    max_sampled: int
    max_seq_len: int
    part: GpuPart
    max_drafts: int = 0
    ring_bytes: int = 0
    """Bytes of a state slot's ring, for drafts or spread steps."""
    spread_bytes: int = 0
    """Bytes of the memory that other workers write into."""

    @property
    def probe_bytes(self) -> int:
        return Region.of_probe(self.layout).size_bytes

    @property
    def num_work_pages(self) -> int:
        return num_work_pages(self.layout, self.part.max_prompt_tokens)

    @property
    def tokens_each(self) -> int:
        """Tokens for which each state slot leaves pages: TYPICAL_TOKENS, or as many as take the
        memory of its window pages, so that long contexts find room beside many short ones."""
        window_bytes = self.layout.ring_pages * self.layout.window_page_bytes
        as_much = window_bytes // self.layout.page_bytes * self.layout.page_size
        return min(max(TYPICAL_TOKENS, as_much), self.max_seq_len)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a state slot with its tables."""
        return self.layout.state_slot_bytes + self.num_ids * TABLE_BYTES + self.ring_bytes

    def sampled_bytes(self, num_slots: int) -> int:
        """Bytes of scratch memory that sampling needs."""
        num_rows = step_tokens(min(num_slots, self.max_sampled), self.max_drafts)
        logits_bytes = num_rows * LOGITS_BYTES * (2 if self.max_drafts else 1)
        return self.num_ids * (logits_bytes + min(num_rows, SAMPLED_AT_ONCE) * SAMPLED_BYTES)

    def slots_in(self, num_bytes: int, tokens_each: int) -> int:
        """The most state slots that fit, up to DEFAULT_SLOTS, each with pages for
        ``tokens_each`` tokens."""
        pages_bytes = self.layout.pages_for(tokens_each) * self.layout.page_bytes
        for num_slots in range(DEFAULT_SLOTS, 1, -1):
            each = num_slots * (self.slot_bytes + pages_bytes)
            if each + self.sampled_bytes(num_slots) <= num_bytes:
                return num_slots
        return 1


def pools_that_fit(
    demand: CacheDemand, num_pages: int | None, num_state_slots: int | None
) -> PoolSize:
    """The pools; a size that is None is computed from the memory that is free after the weights.

    State slots: DEFAULT_SLOTS, or as many as leave each sequence pages for ``tokens_each``, or as
    many as fit beside the given ``num_pages``. Pages take the rest, but not more than the sequences
    of all slots can fill. Raises ValueError with the numbers if nothing is left for a pool; two
    given sizes are not checked.
    """
    if num_pages is not None and num_state_slots is not None:
        return PoolSize(num_pages, num_state_slots)
    layout = demand.layout
    taken = demand.part.working_bytes + demand.probe_bytes + demand.spread_bytes
    taken += demand.num_work_pages * layout.window_page_bytes
    left = demand.part.free_bytes() - taken
    if num_pages is not None:
        left_for_slots = left - num_pages * layout.page_bytes
        slots = demand.slots_in(left_for_slots, 0)
        if demand.slot_bytes + demand.sampled_bytes(1) > left_for_slots:
            raise ValueError(
                f"num_pages: {num_pages} pages take {_gib(num_pages * layout.page_bytes)} of the "
                f"{_gib(left)} left for the cache, and no state slot fits"
            )
        return PoolSize(num_pages, slots)
    slots = num_state_slots or demand.slots_in(left, demand.tokens_each)
    left -= demand.sampled_bytes(slots)
    slots_bytes = slots * demand.slot_bytes
    pages = (left - slots_bytes) // layout.page_bytes
    if pages < 1:
        raise ValueError(
            f"num_state_slots: {slots} slots take {_gib(slots_bytes)} of the "
            f"{_gib(left)} left for the cache, and no page fits"
        )
    return PoolSize(min(int(pages), slots * layout.pages_for(demand.max_seq_len)), slots)


def memory_plan(weight_bytes: int, layout: CacheLayout, pools: PoolSize) -> str:
    """The memory plan in one line, for the log."""
    pages = pools.num_pages * layout.page_bytes
    slots = pools.num_state_slots * layout.state_slot_bytes
    return (
        f"weights {_gib(weight_bytes)}; {pools.num_pages} pages {_gib(pages)} = "
        f"{pools.num_pages * layout.page_size} tokens; {pools.num_state_slots} state slots "
        f"{_gib(slots)} = that many sequences{_work_pages(layout, pools)}"
    )


def _work_pages(layout: CacheLayout, pools: PoolSize) -> str:
    num_bytes = pools.num_work_pages * layout.window_page_bytes
    return f"; {pools.num_work_pages} work pages {_gib(num_bytes)}" if num_bytes else ""


def shortage(layout: CacheLayout, pools: PoolSize, *, small: bool) -> str:
    """A warning for the log about pools with fewer state slots than DEFAULT_SLOTS; "" for
    others. ``small``: weights are quantised already."""
    slots = pools.num_state_slots
    if slots >= DEFAULT_SLOTS:
        return ""
    tokens = pools.num_pages * layout.page_size
    advice = "" if small else "; --quantize fp8 halves the weights and leaves room for more"
    return (
        f"little of the GPU's memory is left for the cache: at most {slots} sequences at a time, "
        f"{tokens} tokens in all, {tokens // slots} each{advice}"
    )


def free_bytes() -> int:
    """Bytes of the GPU's memory that neither torch nor another process holds, and that torch may
    take (``GpuPart.hold``)."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    allowed = total * torch.cuda.get_per_process_memory_fraction() - torch.cuda.memory_reserved()
    return int(min(free, allowed))


def graphs_plan(free_before: int, graphs: str) -> str:
    """A line for the log about the memory that captured ``graphs`` take and leave."""
    free = free_bytes()
    return f"{graphs} {_gib(free_before - free)}; {_gib(free)} left to work in"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
