"""A pool of slots: which slots are held, and in which epoch."""

from typing import NamedTuple

from transport.wire.errors import PoolExhausted


class StateSlot(NamedTuple):
    """One allocation of a state slot; every allocation of a slot has another ``epoch``."""

    id: int
    epoch: int


class SlotPool:
    """Hands out state slots, from the id ``first`` on; each reservation bumps the slot's epoch.

    A slot belongs to the caller until it releases it with the epoch it got. Releasing a stale or
    foreign slot is a bug and fails an assertion: callers check outdated epochs before.
    """

    def __init__(self, num_slots: int, first: int = 0) -> None:
        self._epochs = dict.fromkeys(range(first, first + num_slots), 0)
        self._free = [*reversed(self._epochs)]
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def reserve(self) -> StateSlot:
        """Reserve a free state slot in a new epoch; raises PoolExhausted."""
        if not self._free:
            raise PoolExhausted(f"a state slot asked for, 0 of {len(self._epochs)} free")
        slot = self._free.pop()
        self._epochs[slot] += 1
        self._held.add(slot)
        return StateSlot(slot, self._epochs[slot])

    def is_current(self, slot: StateSlot) -> bool:
        """True if the slot is held in this epoch."""
        return slot.id in self._held and self._epochs[slot.id] == slot.epoch

    def release(self, slot: StateSlot) -> None:
        assert self.is_current(slot), f"{slot} is stale or not held"
        self._held.remove(slot.id)
        self._free.append(slot.id)

    def check(self) -> None:
        """Raise AssertionError unless every slot is either free or held, exactly once."""
        free = set(self._free)
        assert len(free) == len(self._free), "a state slot is free twice"
        assert not free & self._held, f"slots both free and held: {sorted(free & self._held)}"
        assert free | self._held == set(self._epochs), "slots lost or invented"
