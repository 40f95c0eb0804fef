"""What became of a worker's drafts since it started. Pure."""

from transport.wire.reports import DraftCounts


class DraftCounter:
    """Counts the steps of sequences, and their drafts by position, the first one's first."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._verified: list[int] = []
        self._accepted: list[int] = []

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """A sequence's step had so many drafts, of which the first ``num_accepted`` were
        accepted."""
        self._num_steps += 1
        for counts in (self._verified, self._accepted):
            counts += [0] * (num_drafts - len(counts))
        for position in range(num_drafts):
            self._verified[position] += 1
            self._accepted[position] += position < num_accepted

    def counts(self, num_next: int) -> DraftCounts:
        """``num_next``: drafts that a step makes for each sequence now."""
        return DraftCounts(self._num_steps, tuple(self._verified), tuple(self._accepted), num_next)
