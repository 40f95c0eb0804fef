"""Tested pairs of workers: which worker may pull from which. Pure.

A pair is a worker that exports its memory and a worker that pulls from there: a prefill and a
decode worker for handoffs, any two workers for kept prefixes. A pair is untested until the puller
has reported its self-test, and then usable or broken. Only usable pairs are used. A broken pair
stays broken until one of the two comes back as a new instance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Broken:
    """Why a pair is broken, and when (monotonic seconds) that was reported."""

    problem: str
    reported_at: float


class Pairs:
    """The tested pairs of live workers."""

    def __init__(self) -> None:
        self._usable: set[tuple[str, str]] = set()
        self._broken: dict[tuple[str, str], Broken] = {}

    def report(self, exporter: str, puller: str, problem: str, now: float) -> None:
        """Store the result of a self-test; ``problem`` is empty for a usable pair."""
        self.forget_pair(exporter, puller)
        if problem:
            self._broken[exporter, puller] = Broken(problem, now)
        else:
            self._usable.add((exporter, puller))

    def usable(self, exporter: str, puller: str) -> bool:
        return (exporter, puller) in self._usable

    def broken(self, exporter: str, puller: str) -> bool:
        return (exporter, puller) in self._broken

    def broken_of(self, instance: str) -> dict[str, Broken]:
        """The broken pairs of a worker on either side, by its partner."""
        return {
            exporter if puller == instance else puller: broken
            for (exporter, puller), broken in self._broken.items()
            if instance in (exporter, puller)
        }

    def stranded(
        self, instance: str, partners: Mapping[str, float], reported_before: float = inf
    ) -> str:
        """The problem of a worker whose pairs with all ``partners`` are broken; "" while a pair is
        usable, in one direction at least, or untested.

        ``partners`` says when each was last heard. A partner that was not heard since the report
        may be dead, which is no fault of the path. Reports after ``reported_before`` do not count
        yet.
        """
        broken = self.broken_of(instance)
        for partner, heard_at in partners.items():
            if partner not in broken or self._work_together(instance, partner):
                return ""
            if broken[partner].reported_at >= min(heard_at, reported_before):
                return ""
        return next((broken[partner].problem for partner in partners), "")

    def _work_together(self, instance: str, partner: str) -> bool:
        return self.usable(instance, partner) or self.usable(partner, instance)

    def forget_pair(self, exporter: str, puller: str) -> None:
        self._usable.discard((exporter, puller))
        self._broken.pop((exporter, puller), None)

    def forget(self, instance: str) -> None:
        """Remove all pairs that include this worker."""
        self._usable = {pair for pair in self._usable if instance not in pair}
        self._broken = {p: b for p, b in self._broken.items() if instance not in p}
