"""The books of an engine's cache, with their generations published to pullers."""

from engine.cache.books import CacheBooks, Holding
from engine.runner import Engine

FREE_GENERATION = 0


def books_for(engine: Engine) -> CacheBooks:
    """Books whose every change of hands is visible in the exported region.

    The exported generation of a state slot is its holder's, and ``FREE_GENERATION`` while it
    is free: it changes before anybody else may write there, so a puller that finds it unchanged
    after its copy has read nothing but the offered bytes.
    """
    generations = engine.cache.generations

    # NOTE: assigning a number would copy it from pageable memory and wait for the step under way.
    def publish(holding: Holding) -> None:
        generations[holding.slot.id].fill_(holding.slot.generation)

    def withdraw(holding: Holding) -> None:
        generations[holding.slot.id].fill_(FREE_GENERATION)
        if engine.config.poison:
            engine.poison_pages(holding.pages)
            engine.poison_slot(holding.slot.id)

    generations.fill_(FREE_GENERATION)
    return CacheBooks(engine.pools, on_reserve=publish, on_release=withdraw)
