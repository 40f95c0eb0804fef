"""Who holds which pages and which state slot: one sequence, one holding, from reserve to release.

The states of design and docs map onto it so: *filling*, *receiving* and *live* are a holding of
a sequence; *offered* is a holding that the offers keep; *draining* is a holding whose sequence
has ended but is still touched by a launched step. Free is what no holding has.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.cache.pages import PagePool
from engine.cache.slots import SlotPool, StateSlot
from transport.layout import PoolSize


@dataclass(eq=False)
class Holding:
    """The pages and the state slot of one sequence; void once released."""

    slot: StateSlot
    pages: list[int] = field(default_factory=list)
    released: bool = False


class CacheBooks:
    """The two pools kept together, so that a sequence has both or neither.

    ``on_reserve`` runs before anything is written for the new owner, ``on_release`` when the
    last one let go; a worker publishes the slot's generation there, and tests poison memory.
    """

    def __init__(
        self,
        size: PoolSize,
        *,
        on_reserve: Callable[[Holding], None] = lambda holding: None,
        on_release: Callable[[Holding], None] = lambda holding: None,
    ) -> None:
        self.size = size
        self._pages = PagePool(size.num_pages)
        self._slots = SlotPool(size.num_state_slots)
        self._on_reserve = on_reserve
        self._on_release = on_release
        self._holdings: set[Holding] = set()

    @property
    def free_pages(self) -> int:
        return self._pages.num_free

    @property
    def free_state_slots(self) -> int:
        return self._slots.num_free

    def can_reserve(self, num_pages: int) -> bool:
        return self._slots.num_free > 0 and self._pages.num_free >= num_pages

    def reserve(self, num_pages: int) -> Holding:
        """A state slot and ``num_pages`` pages; raises PoolExhausted, taking neither."""
        pages = self._pages.reserve(num_pages)
        try:
            slot = self._slots.reserve()
        except BaseException:
            self._pages.release(pages)
            raise
        holding = Holding(slot, list(pages))
        self._holdings.add(holding)
        self._on_reserve(holding)
        return holding

    def grow(self, holding: Holding, num_pages: int) -> None:
        """Extend a holding to ``num_pages`` pages; raises PoolExhausted, changing nothing."""
        assert not holding.released, "growing a released holding"
        missing = num_pages - len(holding.pages)
        if missing > 0:
            holding.pages.extend(self._pages.reserve(missing))

    def release(self, holding: Holding) -> None:
        """Give everything back; only once no launched step or copy can touch it any more."""
        assert not holding.released, "released twice"
        holding.released = True
        self._holdings.remove(holding)
        self._on_release(holding)
        self._pages.release(holding.pages)
        self._slots.release(holding.slot)

    def check(self) -> str:
        """Empty if the books balance, else what is wrong."""
        pages = self._pages.num_free + sum(len(holding.pages) for holding in self._holdings)
        slots = self._slots.num_free + len(self._holdings)
        if (pages, slots) == (self.size.num_pages, self.size.num_state_slots):
            return ""
        return (
            f"{pages} of {self.size.num_pages} pages and {slots} of "
            f"{self.size.num_state_slots} state slots accounted for"
        )
