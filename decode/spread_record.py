"""What one member of a spread group says to the others. Pure.

What the stances mean is in decode/lockstep.py, of members that decode, and in decode/lending.py, of
lenders.
"""

from dataclasses import dataclass
from enum import IntEnum

from decode.spread_gain import Load


class Stance(IntEnum):
    """What a member does next."""

    UNAVAILABLE = 0
    WILLING = 1
    COMMITTED = 2


@dataclass(frozen=True)
class Record:
    """What one member tells the others. ``round`` is the next round that it may launch, or to which
    it has committed ``rows`` sequences with up to ``drafts`` drafts each. ``last_round`` is the
    round that it launched most recently, with ``last_rows`` and ``last_drafts``; 0: none.
    ``lenders`` and ``last_lenders``: how many lenders it counted on. ``beat`` rises with every
    decision, so that a member that stands still is noticed. ``acceptance``: the per cent of its
    drafts that are accepted when all before them were.

    ``trial``: number of the trial for which the next round is launched; 0: the round computes
    sequences of requests. ``last_trial``: trial number of ``last_round``. ``table``: digest of the
    step times that were measured on this node, as the member has them; 0: none."""

    generation: int
    round: int = 1
    stance: Stance = Stance.UNAVAILABLE
    rows: int = 0
    last_round: int = 0
    last_rows: int = 0
    beat: int = 0
    lenders: int = 0
    last_lenders: int = 0
    drafts: int = 0
    last_drafts: int = 0
    acceptance: int = 0
    trial: int = 0
    last_trial: int = 0
    table: int = 0

    @property
    def load(self) -> Load:
        """Load of the next step."""
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

    def trial_in(self, number: int) -> int:
        """Trial number of this round, which the member has committed to or launched."""
        return self.last_trial if self.last_round == number else self.trial
