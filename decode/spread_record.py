"""What one member of a spread group says to the others. Pure.

What the stances mean is in decode/lockstep.py, of members that decode, and in decode/lending.py, of
lenders.
"""

from dataclasses import dataclass
from enum import IntEnum

from decode.spread_gain import Load


class Stance(IntEnum):
    """What a member does next."""

    APART = 0
    WILLING = 1
    COMMITTED = 2


@dataclass(frozen=True)
class Record:
    """What one member says. ``round`` is the next one that it may launch, or has committed to with
    ``rows`` sequences that verify up to ``drafts`` drafts each; ``last_round`` the one that it
    launched last, with ``last_rows`` and ``last_drafts``; 0: none. ``lenders`` and ``last_lenders``
    are those on which it counted. ``beat`` rises with every decision, so that a member that stands
    still shows. Of its drafts ``acceptance`` per cent are accepted, of those whose predecessors
    were."""

    generation: int
    round: int = 1
    stance: Stance = Stance.APART
    rows: int = 0
    last_round: int = 0
    last_rows: int = 0
    beat: int = 0
    lenders: int = 0
    last_lenders: int = 0
    drafts: int = 0
    last_drafts: int = 0
    acceptance: int = 0

    @property
    def load(self) -> Load:
        """Of the step that is next."""
        return Load(self.rows, self.drafts, self.acceptance / 100)

    def load_in(self, number: int) -> Load:
        """In this round, which the member has committed to or launched."""
        rows = self.committed_to(number) or 0
        return Load(rows, self.drafts_in(number), self.acceptance / 100)

    def committed_to(self, number: int) -> int | None:
        """The rows with which the member launches this round, or has launched it; None: it has not
        committed to it."""
        if self.stance is Stance.COMMITTED and self.round == number:
            return self.rows
        return self.last_rows if self.last_round == number else None

    def drafts_in(self, number: int) -> int:
        """The drafts of this round, which it has committed to or launched."""
        return self.last_drafts if self.last_round == number else self.drafts

    def lenders_in(self, number: int) -> int:
        """On how many it counted in this round, which it has committed to or launched."""
        return self.last_lenders if self.last_round == number else self.lenders
