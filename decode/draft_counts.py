"""Counts a worker's verified and accepted drafts since it started. Pure."""

from transport.wire.reports import DraftCounts


class DraftCounter:
    """Counts the steps of sequences, and their drafts by position, the first one's first."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._verified: list[int] = []
        self._accepted: list[int] = []

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """Count one sequence's step, in which the first ``num_accepted`` of ``num_drafts`` drafts
        were accepted."""
        self._num_steps += 1
        for counts in (self._verified, self._accepted):
            counts += [0] * (num_drafts - len(counts))
        for position in range(num_drafts):
            self._verified[position] += 1
            self._accepted[position] += position < num_accepted

    def counts(self, num_next: int) -> DraftCounts:
        """The counts so far. ``num_next``: drafts that a step makes for each sequence now."""
        return DraftCounts(self._num_steps, tuple(self._verified), tuple(self._accepted), num_next)
