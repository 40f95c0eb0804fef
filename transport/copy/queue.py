"""The copies into a worker's cache that are under way: their deadlines, ends and checks.

1. ``add``      A copy was started. Its memory stays reserved until it has ended, however late.
2. ``ended``    The device has written the last byte. The copy is stale if the source's epoch says
                that the source was reused meanwhile.
3. ``damaged``  True if the copied bytes have another digest than the source. This reads the copy on
                the device, so a copy that nothing needs any more is not asked.
4. ``overdue``  Copies past their deadline that have not ended: what needs them fails, but their
                memory is still being written.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from transport.copy.digest import digest
from transport.copy.pull import Copied, Pull
from transport.copy.tensors import CacheTensors
from transport.wire.errors import StaleEpoch

Owner = TypeVar("Owner")


@dataclass(frozen=True)
class Landing:
    """The memory that a copy fills with the first ``num_tokens`` tokens of a sequence. ``digest``:
    the source's; "" if it has none, and the copy is not compared with it."""

    pages: Sequence[int]
    state_slot: int
    num_tokens: int
    digest: str = ""


@dataclass(frozen=True, eq=False)
class _Copy(Generic[Owner]):
    owner: Owner
    pull: Pull
    landing: Landing
    deadline: float


@dataclass(frozen=True, eq=False)
class Ended(Generic[Owner]):
    """A copy that has ended, and its ``owner``. ``copied`` is None for a stale copy; then ``stale``
    says how the source changed."""

    owner: Owner
    copied: Copied | None
    stale: str
    landing: Landing
    cache: CacheTensors

    def damaged(self) -> bool:
        """True if the copy's digest differs from the source's."""
        landing = self.landing
        if not landing.digest:
            return False
        pages, num_tokens = tuple(landing.pages), landing.num_tokens
        return landing.digest != digest(self.cache, pages, landing.state_slot, num_tokens)


class CopyQueue(Generic[Owner]):
    """Copies into ``cache``, each for its owner, oldest first. A copy may take ``timeout_s``.
    ``num_stale`` counts the stale copies."""

    def __init__(self, cache: CacheTensors, timeout_s: float, clock: Callable[[], float]) -> None:
        self.timeout_s = timeout_s
        self.num_stale = 0
        self._cache = cache
        self._clock = clock
        self._copies: list[_Copy[Owner]] = []

    def __len__(self) -> int:
        return len(self._copies)

    def __iter__(self) -> Iterator[Owner]:
        return iter([copy.owner for copy in self._copies])

    def add(self, owner: Owner, pull: Pull, landing: Landing) -> None:
        """Add a copy that was started now."""
        self._copies.append(_Copy(owner, pull, landing, self._clock() + self.timeout_s))

    def ended(self) -> list[Ended[Owner]]:
        """Remove and return the copies that have ended, with or without success."""
        ended = [copy for copy in self._copies if copy.pull.done()]
        self._copies = [copy for copy in self._copies if copy not in ended]
        return [self._result(copy) for copy in ended]

    def overdue(self) -> list[Owner]:
        """Owners of the copies past their deadline."""
        now = self._clock()
        return [copy.owner for copy in self._copies if now >= copy.deadline]

    def on_time(self) -> list[Owner]:
        """Owners of the copies that may still end before their deadline."""
        now = self._clock()
        return [copy.owner for copy in self._copies if now < copy.deadline]

    def wait(self, timeout_s: float) -> bool:
        """Wait until all copies have ended, at most ``timeout_s``; returns True if all have."""
        deadline = self._clock() + timeout_s
        return all(copy.pull.wait(max(0.0, deadline - self._clock())) for copy in self._copies)

    def _result(self, copy: _Copy[Owner]) -> Ended[Owner]:
        copied, stale = None, ""
        try:
            copied = copy.pull.result()
        except StaleEpoch as error:
            self.num_stale += 1
            stale = str(error)
        return Ended(copy.owner, copied, stale, copy.landing, self._cache)
