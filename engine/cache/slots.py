"""The state-slot pool's books: which state slots are held, and in which generation."""

from typing import NamedTuple

from transport.errors import PoolExhausted


class StateSlot(NamedTuple):
    """One holding of a state slot; ``generation`` tells it from every earlier holding."""

    id: int
    generation: int


class SlotPool:
    """Hands out state slots; each reservation bumps the slot's generation.

    A slot belongs to the caller until it releases it with the generation it got. Releasing a
    stale or foreign one is our bug and fails an assertion: who holds an outdated number must be
    refused before it comes here.
    """

    def __init__(self, num_state_slots: int) -> None:
        self._generations = [0] * num_state_slots
        self._free = list(range(num_state_slots - 1, -1, -1))
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def reserve(self) -> StateSlot:
        """A free state slot in a new generation, or PoolExhausted."""
        if not self._free:
            raise PoolExhausted(f"a state slot asked for, 0 of {len(self._generations)} free")
        slot = self._free.pop()
        self._generations[slot] += 1
        self._held.add(slot)
        return StateSlot(slot, self._generations[slot])

    def is_current(self, slot: StateSlot) -> bool:
        """Whether this very holding is still in force."""
        return slot.id in self._held and self._generations[slot.id] == slot.generation

    def release(self, slot: StateSlot) -> None:
        assert self.is_current(slot), f"{slot} is stale or not held"
        self._held.remove(slot.id)
        self._free.append(slot.id)

    def check(self) -> None:
        """Raise AssertionError unless every slot is either free or held, exactly once."""
        free = set(self._free)
        assert len(free) == len(self._free), "a state slot is free twice"
        assert not free & self._held, f"slots both free and held: {sorted(free & self._held)}"
        assert free | self._held == set(range(len(self._generations))), "slots lost or invented"
