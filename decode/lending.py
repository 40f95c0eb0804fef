"""Which rounds of a spread group a member without sequences takes part in. Pure.

No member waits for a lender. It may come to a round that all decoding members have committed to;
the devices share the experts out among the members that have come (engine/spread/triton_agree.py).
The stances in its record:

    UNAVAILABLE  it computes prompts
    WILLING      it has nothing to compute, and no step under way
    COMMITTED    steps are under way on its device, the last one of this round

The others count on a lender by its stance. After an aborted step they wait until it has ended its
own steps (decode/lockstep.py).

A step is launched behind the one under way, as members that decode do it: what is launched only
when the step before has ended often comes too late.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from decode.spread_record import Record, Stance
from decode.spread_round import Together, agreed

AHEAD = 2
"""Most steps under way: one that is computed, and the next one."""


class LendingRounds:
    """Rounds of one lender in one generation of a group. Publish ``record`` after each method, and
    before the round is launched."""

    def __init__(self, generation: int) -> None:
        self.record = Record(generation)
        self._under_way: deque[int] = deque()

    def decide(self, decoding: Sequence[Record | None], *, willing: bool) -> Together | None:
        """The round that is to be launched now, if there is one. ``decoding`` are the records of
        all members that decode; None: unreadable."""
        if not self._under_way:
            self._say(Stance.WILLING if willing else Stance.UNAVAILABLE)
        here = [each for each in decoding if each and each.generation == self.record.generation]
        if not willing or len(here) < len(decoding) or len(self._under_way) == AHEAD:
            return None
        launched = self._under_way[-1] if self._under_way else self.record.last_round
        numbers = {each.last_round for each in here} | {each.round for each in here}
        for number in sorted(numbers, reverse=True):
            together = agreed(here, number)
            # A trial is so short that whether a lender comes in time is chance: none takes part.
            if together and not together.trial and number > launched:
                self.record = replace(self.record, round=number)
                self._say(Stance.COMMITTED)
                self._under_way.append(number)
                return together
        return None

    def done(self) -> None:
        """The oldest launched round has ended on this member's device."""
        self.record = replace(self.record, last_round=self._under_way.popleft())
        self._say(Stance.COMMITTED if self._under_way else Stance.WILLING)

    def mark_unavailable(self) -> None:
        """Take part in no rounds: prompts are computed now, with no step under way."""
        assert not self._under_way
        self._say(Stance.UNAVAILABLE)

    def _say(self, stance: Stance) -> None:
        self.record = replace(self.record, stance=stance, beat=self.record.beat + 1)
