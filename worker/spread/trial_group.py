"""The members of a spread group, as one of them times steps with them."""

from collections.abc import Callable, Iterable

from decode.lockstep import Decision, Lockstep
from decode.spread_record import Record, Stance
from decode.spread_round import Together
from engine.batch import SpreadPlan
from engine.spread.shapes import Shapes
from worker.spread.peers import Peers, read_all
from worker.spread.place import plan_of


class TrialGroup:
    """``rounds`` are agreed on with ``peers``; ``publish`` writes this worker's record. Trials are
    numbered from 1 on, and have the same number at all members."""

    def __init__(
        self,
        rounds: Lockstep,
        peers: Peers,
        publish: Callable[[Record], None],
        shapes: Shapes,
        clock: Callable[[], float],
    ) -> None:
        self._rounds, self._peers, self._publish = rounds, peers, publish
        self.shapes, self._clock = shapes, clock

    @property
    def num_members(self) -> int:
        """Members that decode: lenders take no part in trials."""
        return len(self._peers.decoding) + 1

    def is_idle(self) -> bool:
        """True if no other member has anything to compute but trials."""
        peers = self._peers
        decoding = self._of_this_generation(read_all(peers.decoding))
        lenders = self._of_this_generation(read_all(peers.lenders))
        if (len(decoding), len(lenders)) != (len(peers.decoding), len(peers.lenders)):
            return False
        return all(
            each.trial or (each.stance is Stance.WILLING and not each.rows) for each in decoding
        ) and all(each.stance is not Stance.UNAVAILABLE for each in lenders)

    def highest(self) -> int:
        """The highest number of a trial that another member is at."""
        here = self._of_this_generation(read_all(self._peers.decoding))
        return max((each.trial for each in here), default=0)

    def prepare(self, trial: int) -> None:
        """Be at this trial, without a round of it; 0: at none. No spread step is under way."""
        self._rounds.prepare_trial(trial)
        self._publish(self._rounds.record)

    def decide(self, trial: int, num_rows: int, num_drafts: int) -> Decision:
        """Whether the next step of this trial is launched now: as in Lockstep.decide."""
        decision = self._rounds.decide(
            num_rows, read_all(self._peers.decoding), self._clock(), willing=True,
            lenders=read_all(self._peers.lenders), drafts=num_drafts, trial=trial,
        )  # fmt: skip
        self._publish(self._rounds.record)
        return decision

    def plan(self, together: Together, *, first: bool) -> SpreadPlan:
        """What the engine launches for an agreed step; ``first`` as in SpreadPlan."""
        return plan_of(self._rounds.record.generation, together, self.shapes, first=first)

    def aborted(self) -> None:
        """Launched steps were taken back, and all have been read."""
        self._rounds.aborted(self._clock())
        self._publish(self._rounds.record)

    def _of_this_generation(self, records: Iterable[Record | None]) -> list[Record]:
        generation = self._rounds.record.generation
        return [each for each in records if each and each.generation == generation]
