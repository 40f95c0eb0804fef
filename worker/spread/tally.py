"""What a worker has done in spread groups since it started, as its heartbeats tell."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from transport.wire.spread import MAX_MEMBERS, MAX_NAMED, SpreadCounts


class Tally:
    """Grows only; other workers are named by their instances, and forgotten when too many others
    came after them."""

    def __init__(self) -> None:
        self._num_steps = self._num_local = self._num_aborted = 0
        self._spread_s = self._local_s = self._wait_s = 0.0
        self._waits_s: defaultdict[str, float] = defaultdict(float)
        self._within_s: defaultdict[str, float] = defaultdict(float)
        self._saved_s = 0.0
        self._late: defaultdict[str, int] = defaultdict(int)

    def joins(self, members: Sequence[str]) -> None:
        """Count for ``members`` from now on. Counts of former members are kept while there is room:
        a worker often comes back, and its counts must not restart at 0."""
        for counted in (self._waits_s, self._within_s, self._late):
            _forget(counted, members)

    def record_step(self, seconds: float, *, spread: bool) -> None:
        """Record how long a decode step took. ``spread``: it was computed together with others."""
        if spread:
            self._num_steps += 1
            self._spread_s += seconds
        else:
            self._num_local += 1
            self._local_s += seconds

    def aborted(self) -> None:
        """Record that launched steps were taken back."""
        self._num_aborted += 1

    def waited(self, peers: Sequence[str], seconds: float) -> None:
        """Record that the host waited ``seconds`` for each of ``peers``."""
        self._wait_s += seconds
        for peer in peers:
            self._waits_s[peer] += seconds

    def shared(self, waited_s: Mapping[str, float], saved_s: float) -> None:
        """Record a spread step: how long the device waited for each peer within it, and how much
        longer it would have taken with one member less."""
        for peer, seconds in waited_s.items():
            self._within_s[peer] += seconds
        self._saved_s += saved_s

    def was_late(self, peer: str) -> int:
        """Record that this worker waited for ``peer`` in vain; returns how often so far."""
        self._late[peer] += 1
        return self._late[peer]

    def counts(self, num_members: int) -> SpreadCounts:
        waits_ms = {peer: round(seconds * 1e3) for peer, seconds in self._waits_s.items()}
        within_us = {peer: round(seconds * 1e6) for peer, seconds in self._within_s.items()}
        return SpreadCounts(
            num_members=num_members,
            num_steps=self._num_steps,
            num_aborted=self._num_aborted,
            wait_ms=round(self._wait_s * 1e3),
            late=tuple(sorted(self._late.items())),
            num_local=self._num_local,
            spread_ms=round(self._spread_s * 1e3),
            local_ms=round(self._local_s * 1e3),
            waits_ms=tuple(sorted(waits_ms.items())),
            within_us=tuple(sorted(within_us.items())),
            saved_us=max(0, round(self._saved_s * 1e6)),
        )


def _forget(counted: dict[str, Any], members: Sequence[str]) -> None:
    """Drop the members that were in no group for longest, to have room for all ``members``."""
    for name in members:
        if name in counted:
            counted[name] = counted.pop(name)
    for name in list(counted)[: -(MAX_NAMED - MAX_MEMBERS)]:
        del counted[name]
