"""Kinds of places where states are kept, and how likely a state there is used. Pure."""

from math import sqrt
from typing import Literal

Kind = Literal["end", "question", "boundary", "branch", "answer", "copied"]
"""``end``: near a prompt's end. ``question``: before its last tokens. ``boundary``: where its text
has one. ``branch``: an earlier prompt begins with it too. ``answer``: the end of one. ``copied``:
from another worker, which does not say where it was kept."""

MAX_COUNTED = 1000
"""Prefixes of a kind that are counted until both of its counts are halved, so that older ones count
less."""


class UseOdds:
    """How many of the prefixes that were kept at each kind of place were used before they were
    evicted, by counts. One unused and one used prefix of each kind are counted in advance."""

    def __init__(self) -> None:
        self._num_kept: dict[Kind, float] = {}
        self._num_used: dict[Kind, float] = {}

    def note_kept(self, kind: Kind) -> None:
        self._num_kept[kind] = num_kept = self._num_kept.get(kind, 0) + 1
        if num_kept > MAX_COUNTED:
            self._num_kept[kind] /= 2
            self._num_used[kind] = self._num_used.get(kind, 0) / 2

    def note_used(self, kind: Kind) -> None:
        """A prefix of this kind was used for the first time since it was kept."""
        self._num_used[kind] = self._num_used.get(kind, 0) + 1

    def weight(self, kind: Kind) -> float:
        """What the odds count for: their square root. A kind that is evicted early has few uses, so
        that its odds alone would keep it from ever having more."""
        return sqrt(self.of(kind))

    def of(self, kind: Kind) -> float:
        """Between 0 and 1, neither included."""
        num_kept, num_used = self._num_kept.get(kind, 0), self._num_used.get(kind, 0)
        return (min(num_used, num_kept) + 1) / (num_kept + 2)
