"""Which worker may pull from which, by their self-tests. Pure.

A pair is a worker that exports its memory and one that pulls from there: a prefill and a decode
worker for handoffs, any two for kept prefixes. It is untested until the puller has reported, and
then usable or broken. Only usable pairs are used. A broken pair stays broken until one of the two
comes back as a new instance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Broken:
    """Why a pair is not used, and when (monotonic seconds) that was reported."""

    problem: str
    reported_at: float


class Pairs:
    """The tested pairs of live workers."""

    def __init__(self) -> None:
        self._usable: set[tuple[str, str]] = set()
        self._broken: dict[tuple[str, str], Broken] = {}

    def report(self, exporter: str, puller: str, problem: str, now: float) -> None:
        """Take in a self-test; ``problem`` is empty for a pair that may be used."""
        self.forget_pair(exporter, puller)
        if problem:
            self._broken[exporter, puller] = Broken(problem, now)
        else:
            self._usable.add((exporter, puller))

    def usable(self, exporter: str, puller: str) -> bool:
        return (exporter, puller) in self._usable

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
        """Why a worker is of no use: a problem, when its pair with every one of ``partners`` is
        broken; "" while one works or is untested.

        ``partners`` says when each was last heard of. One that has not been since the report may
        be dead, which is no fault of the path; younger reports than ``reported_before`` wait.
        """
        broken = self.broken_of(instance)
        for partner, heard_at in partners.items():
            if partner not in broken:
                return ""
            if broken[partner].reported_at >= min(heard_at, reported_before):
                return ""
        return next((broken[partner].problem for partner in partners), "")

    def forget_pair(self, exporter: str, puller: str) -> None:
        self._usable.discard((exporter, puller))
        self._broken.pop((exporter, puller), None)

    def forget(self, instance: str) -> None:
        """A worker on either side is gone."""
        self._usable = {pair for pair in self._usable if instance not in pair}
        self._broken = {p: b for p, b in self._broken.items() if instance not in p}
