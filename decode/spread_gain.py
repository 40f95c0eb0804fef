"""What a group gains by spread steps over local ones, by a table of what both take. Pure.

A spread step reads each active expert once for all members, and exchanges tokens 80 times: of each
sequence the certain one, and its drafts. Few tokens have few experts in common, so that local steps
are faster. A spread step has room for fewer drafts where a member has many sequences: what counts
is how many tokens come of a step for its time (decode/spread_table.py), each kind of step with the
number of drafts that is best for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from decode.spread_table import LOCAL, StepTable
from engine.spread.shapes import Shapes, fits, shape_for


@dataclass(frozen=True, order=True)
class Load:
    """A member's next step: ``rows`` sequences, with up to ``drafts`` drafts to verify for each.
    ``acceptance``: the share of drafts that are accepted when all before them were."""

    rows: int
    drafts: int = 0
    acceptance: float = 0.0

    @property
    def tokens(self) -> int:
        return self.rows * (1 + self.drafts)

    def expected(self, num_drafts: int) -> float:
        """Tokens that come of a step with so many drafts."""
        return self.rows * sum(self.acceptance**place for place in range(num_drafts + 1))


@dataclass(frozen=True)
class SpreadGain:
    """``drafts``: the numbers of drafts that a step may have; ``shapes``: those of spread steps;
    ``table``: what steps take. ``num_sharing`` are the members that decode, and the lenders that
    have nothing to do. The order of the loads does not count, nor do their drafts."""

    drafts: tuple[int, ...]
    shapes: Shapes
    table: StepTable

    def gain(self, loads: Sequence[Load], num_sharing: int) -> float:
        """Tokens a second of spread steps, over those of local ones; 0 where there are none."""
        most = max((load.rows for load in loads), default=0)
        if num_sharing < 2 or not most or not fits(self.shapes, most):
            return 0.0
        spread = max(
            sum(load.expected(num) for load in loads) / self._spread_ms(loads, num_sharing, num)
            for num in self._drafts_of(num_sharing, most)
        )
        return spread / sum(self._local_rate(load) for load in loads if load.rows)

    def saved_ms(self, loads: Sequence[Load], num_sharing: int, num_drafts: int) -> float:
        """How much longer a step would take the other members with one member less to share it:
        the one with the fewest sequences."""
        if not loads or num_drafts not in self._drafts_of(num_sharing, max(x.rows for x in loads)):
            return 0.0
        now_ms = self._spread_ms(loads, num_sharing, num_drafts)
        others = sorted(loads, key=lambda load: load.rows)[1:]
        most = max((load.rows for load in others), default=0)
        if not most:
            return 0.0
        if num_sharing > 2 and self.table.has(num_sharing - 1, num_drafts):
            return self._spread_ms(others, num_sharing - 1, num_drafts) - now_ms
        return self.table.local_ms(most, num_drafts) - now_ms

    def draft_costs(self, loads: Sequence[Load], num_sharing: int) -> tuple[float, ...]:
        """What a spread step with 1, 2, … drafts takes, in spread steps without, as far as the
        largest member has room for them."""
        most = max(load.rows for load in loads)
        known = self._drafts_of(num_sharing, most)
        longest = next(num for num in range(len(known) + 1) if num not in known)
        times = [self._spread_ms(loads, num_sharing, num) for num in range(longest)]
        return tuple(ms / times[0] for ms in times[1:])

    def _local_rate(self, load: Load) -> float:
        table = self.table
        known = [num for num in self.drafts if table.has(LOCAL, num)] or [0]
        return max(load.expected(num) / table.local_ms(load.rows, num) for num in known)

    def _spread_ms(self, loads: Sequence[Load], num_sharing: int, num_drafts: int) -> float:
        most, total = max(load.rows for load in loads), sum(load.rows for load in loads)
        return self.table.spread_ms(num_sharing, most, num_drafts, total * (1 + num_drafts))

    def _drafts_of(self, num_sharing: int, most_rows: int) -> list[int]:
        """Numbers of drafts that both the shapes of spread steps and the table allow."""
        allowed = {shape_for(self.shapes, most_rows, num).num_drafts for num in self.drafts}
        return [num for num in sorted(allowed) if self.table.has(num_sharing, num)] or [0]
