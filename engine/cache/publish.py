"""The allocator of an engine's cache, which publishes the epochs of state slots to pullers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from engine.cache.allocator import CacheAllocator
from engine.cache.slots import StateSlot
from engine.runner import Engine

FREE_EPOCH = 0


@contextmanager
def at_once(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Context whose CUDA work runs beside the step under way, and before later work on the current
    stream. Pulls write freed memory without waiting for the step, so they wait for ``stream``
    (transport/copy/cuda_pull.py)."""
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(stream.device).wait_stream(stream)


def allocator_for(engine: Engine) -> CacheAllocator:
    """An allocator that publishes every change of owner in the exported region.

    The exported epoch of a state slot is its owner's epoch, or ``FREE_EPOCH`` while the slot is
    free or its owner is not published. It changes before a new owner may write there, so a puller
    that finds it unchanged after its copy has read only the offered bytes.
    """
    epochs = engine.cache.epochs

    # NOTE: assigning a number would copy it from pageable memory and wait for the step under way.
    def publish(slot: StateSlot) -> None:
        with at_once(engine.epoch_stream):
            epochs[slot.id].fill_(slot.epoch)

    def withdraw(slot: StateSlot | None, pages: Sequence[int]) -> None:
        if slot is not None:
            with at_once(engine.epoch_stream):
                epochs[slot.id].fill_(FREE_EPOCH)
        if engine.config.poison:
            if pages:
                engine.poison_pages(pages)
            if slot is not None:
                engine.poison_slot(slot.id)

    epochs.fill_(FREE_EPOCH)
    return CacheAllocator(
        engine.pools,
        page_size=engine.layout.page_size,
        has_states=engine.layout.has_states,
        on_reserve=publish,
        on_free=withdraw,
    )
