"""Members of a spread group that were waited for in vain, and what follows from it. Pure: no clock.

A member that was late does not count until its record has changed. The member that has waited keeps
away from rounds for a while, twice as long after each further time (lockstep.py).
"""

from collections.abc import Sequence
from math import inf

from decode.spread_record import Record


class Lateness:
    """What one member knows of waits in vain; it knows the others by their places.

    ``back_off_s``: how long it keeps away after the first one; ``max_back_off_s``: the longest it
    does; after ``forgiven_after`` rounds in time the next one counts as the first again.
    """

    def __init__(self, back_off_s: float, max_back_off_s: float, forgiven_after: int) -> None:
        self._first_s = self._next_s = back_off_s
        self._most_s = max_back_off_s
        self._forgiven_after = forgiven_after
        self._late: dict[int, Record | None] = {}
        self._away_until = -inf
        self._rounds_in_time = 0

    def keeps_away(self, now: float) -> bool:
        """True while this member takes no part in rounds."""
        return now < self._away_until or bool(self._late)

    def is_late(self, place: int) -> bool:
        """True if the last wait for this member was in vain, and its record is still the same."""
        return place in self._late

    def look(self, others: Sequence[Record | None]) -> None:
        """Let late members count again whose records have changed."""
        for place in [place for place, record in self._late.items() if others[place] != record]:
            del self._late[place]

    def missed(self, places: Sequence[int], others: Sequence[Record | None], now: float) -> None:
        """Note that a wait for the members at ``places`` was in vain."""
        self._late |= {place: others[place] for place in places}
        self.back_off(now)

    def back_off(self, now: float) -> None:
        """Keep away for a while."""
        self._rounds_in_time = 0
        self._away_until = now + self._next_s
        self._next_s = min(2 * self._next_s, self._most_s)

    def launched(self) -> None:
        """Note a round in time."""
        self._rounds_in_time += 1
        if self._rounds_in_time >= self._forgiven_after:
            self._next_s = self._first_s
