"""The table of step times by which a member of a spread group decides when to spread its steps."""

from typing import Protocol

from decode.spread_table import StepTable, shipped
from engine.cache.allocator import CacheAllocator
from worker.spread.kept_tables import NodeTable
from worker.spread.trial_group import TrialGroup
from worker.spread.trial_rows import TrialMemory


class StepTimes(Protocol):
    """``base`` is the table where none was measured here; ``given``: it is a file of the user's.
    ``node`` is one that a group of this size has measured on this node. ``under_way``: ``advance``
    is to be called again at once."""

    base: StepTable
    given: bool

    @property
    def node(self) -> NodeTable | None: ...

    @property
    def under_way(self) -> bool: ...

    @property
    def held(self) -> TrialMemory: ...

    def begin(self, group: TrialGroup) -> None:
        """A group was joined."""
        ...

    def advance(self, memory: CacheAllocator) -> None:
        """Launch at most one step to time, and wait for the one before. The worker has nothing
        else to compute; ``memory`` is its cache."""
        ...

    def pause(self) -> None:
        """Wait for the step under way, and give its memory back: the worker has something to
        compute, or its group ends."""
        ...


class FixedTimes:
    """A table that is used as it is, the shipped one if none is given; nothing is timed."""

    node = None
    under_way = False
    held = TrialMemory()

    def __init__(self, table: StepTable | None = None) -> None:
        self.base, self.given = table or shipped(), table is not None

    def begin(self, group: TrialGroup) -> None:
        """The table is the same for all groups."""

    def advance(self, memory: CacheAllocator) -> None:
        """Nothing is timed."""

    def pause(self) -> None:
        """Nothing is under way."""
