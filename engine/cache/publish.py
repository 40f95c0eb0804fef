"""The allocator of an engine's cache, which publishes the epochs of state slots to pullers."""

from engine.cache.allocator import CacheAllocation, CacheAllocator
from engine.runner import Engine

FREE_EPOCH = 0


def allocator_for(engine: Engine) -> CacheAllocator:
    """An allocator that publishes every change of owner in the exported region.

    The exported epoch of a state slot is its owner's, and ``FREE_EPOCH`` while it
    is free: it changes before anybody else may write there, so a puller that finds it unchanged
    after its copy has read nothing but the offered bytes.
    """
    epochs = engine.cache.epochs

    # NOTE: assigning a number would copy it from pageable memory and wait for the step under way.
    def publish(allocation: CacheAllocation) -> None:
        epochs[allocation.slot.id].fill_(allocation.slot.epoch)

    def withdraw(allocation: CacheAllocation) -> None:
        epochs[allocation.slot.id].fill_(FREE_EPOCH)
        if engine.config.poison:
            engine.poison_pages(allocation.pages)
            engine.poison_slot(allocation.slot.id)

    epochs.fill_(FREE_EPOCH)
    return CacheAllocator(engine.pools, on_reserve=publish, on_release=withdraw)
