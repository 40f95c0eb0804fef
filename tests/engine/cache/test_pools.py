"""The books of pages and state slots balance whatever is done to them."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.cache.pages import PagePool
from engine.cache.slots import SlotPool, StateSlot
from transport.wire.errors import PoolExhausted

SIZE = 12


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pages, self.slots = PagePool(SIZE), SlotPool(SIZE)
        self.held: list[tuple[int, ...]] = []
        self.current: list[StateSlot] = []
        self.stale: list[StateSlot] = []

    @rule(n=st.integers(0, SIZE + 1))
    def reserve_pages(self, n: int) -> None:
        if n <= SIZE - sum(map(len, self.held)):
            self.held.append(self.pages.reserve(n))
        else:
            with pytest.raises(PoolExhausted, match=str(n)):
                self.pages.reserve(n)

    @rule(data=st.data())
    def release_pages(self, data: st.DataObject) -> None:
        if self.held:
            self.pages.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule()
    def reserve_slot(self) -> None:
        if len(self.current) == SIZE:
            with pytest.raises(PoolExhausted):
                self.slots.reserve()
            return
        slot = self.slots.reserve()
        assert all(slot.epoch > old.epoch for old in self.stale if old.id == slot.id)
        self.current.append(slot)

    @rule(data=st.data())
    def release_slot(self, data: st.DataObject) -> None:
        if self.current:
            slot = self.current.pop(data.draw(st.integers(0, len(self.current) - 1)))
            self.slots.release(slot)
            self.stale.append(slot)

    @rule(data=st.data())
    def release_stale_slot(self, data: st.DataObject) -> None:
        if self.stale:
            with pytest.raises(AssertionError, match="stale"):
                self.slots.release(data.draw(st.sampled_from(self.stale)))

    @invariant()
    def books_balance(self) -> None:
        self.pages.check()
        self.slots.check()
        ids = [page for pages in self.held for page in pages]
        assert len(set(ids)) == len(ids) == self.pages.num_held == SIZE - self.pages.num_free
        assert len({s.id for s in self.current}) == self.slots.num_held
        assert self.slots.num_held == SIZE - self.slots.num_free
        assert all(map(self.slots.is_current, self.current))
        assert not any(map(self.slots.is_current, self.stale))


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPools = PoolMachine.TestCase


def test_double_release_fails() -> None:
    pool = PagePool(2)
    ids = pool.reserve(1)
    pool.release(ids)
    with pytest.raises(AssertionError, match="not held"):
        pool.release(ids)


def test_lost_pages_are_found() -> None:
    pool = PagePool(3)
    pool._free.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check()
