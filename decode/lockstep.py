"""How the members of a spread group agree on their next decode step. Pure: no memory, no clock.

All members of a group launch a spread step, each for its own sequences; its number is the *round*.
Every member publishes one ``Record`` that all others can read, and decides from what it reads. A
record has one of three stances.

    UNAVAILABLE  Takes no part now: computes prompts, drains, or waits for a late member.
    WILLING      Runs local steps, and would take part.
    COMMITTED    Launches this round if all members commit to it, and nothing before that.

A member commits when all others are willing and the rows of all promise a gain, or when another one
has committed. Once all have committed to a round each launches it, in the graph for the most rows
and the most drafts of a member: a committed round's never change, so all choose the same. A member
that turns UNAVAILABLE, or that does not commit in time, makes the others withdraw and run a local
step.

Memory with one writer each cannot make that certain: one member may see the last commitment just
when another one gives up. The first then launches a round that the second does not, its GPU waits
in vain for a bounded time, and the step is taken back (``aborted``). Members that are on time never
do that.

A member commits to a round once at most, and rounds only rise. Its record also says which round it
launched last: it cannot launch a second one that another member, still at the first, has not seen.
Rounds that it launches without anything in between follow one another, so that an aborted round
voids itself and the next one.

A member with prompts is unavailable until they end soon, so the others take local steps. Members in
lockstep begin with prompts together, at every WINDOW-th round only (``holds_prompts``), and before
the next step of their sequences. Short prompts wait for that window too where the others wait for a
member (worker/turns.py).

*Lenders* are members without sequences, which may come to a round or not (decode/lending.py). No
member waits for their records; they count where it is decided whether sharing pays, with as many as
the most that a member has seen when it committed. After an aborted round the members begin again
only when no lender has a step under way: what it computes for the aborted one must not come late.

A *trial* is a series of rounds that are only timed, while no member has anything to compute
(worker/spread/trials.py). A record says for which trial its next round is; 0: for none. Members
with different trial numbers are not present for one another, so no round mixes a trial with
sequences of requests. Members with the same trial number launch together whatever the policy says.
A wait in vain or an aborted round within a trial makes no member unavailable, and none late.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Literal

from decode.lateness import Lateness
from decode.spread_gain import Load
from decode.spread_policy import SpreadPolicy
from decode.spread_record import Record, Stance
from decode.spread_round import Together, agreed

LOCAL: Final = "local"
WAIT: Final = "wait"
WINDOW = 8
"""Rounds between two in which members may turn to prompts, which wait for half as many steps on
average."""
MOST_WITHOUT = 3
"""Rounds that a member which decodes alone takes while its lenders compute prompts. They come back
to a round sooner than to one behind local steps (tests/simulation/test_timed.py)."""


Decision = Together | Literal["local", "wait"]


@dataclass(frozen=True)
class LockstepTimes:
    """``wait_s``: how long a member waits for the others' commitment, who may be in a local step,
    or wait for prompts that end soon. After a wait in vain or an aborted step the member stays
    unavailable for ``back_off_s``, and twice as long after each further one, up to
    ``max_back_off_s``; ``forgiven_after`` rounds since the last one make it short again: they save
    more than the wait has cost."""

    wait_s: float = 0.1
    back_off_s: float = 0.1
    max_back_off_s: float = 10.0
    forgiven_after: int = 100


class Lockstep:
    """One member of one generation of a group.

    ``record`` is to be published whenever a method has returned. ``late`` are the members, by their
    places among the others, for whom the last wait was in vain; ``loads`` what all brought to the
    round that was launched last, and ``num_sharing`` with how many it was counted on.
    """

    def __init__(
        self, generation: int, policy: SpreadPolicy, times: LockstepTimes | None = None
    ) -> None:
        self.record = Record(generation)
        self.late: tuple[int, ...] = ()
        self.loads: tuple[Load, ...] = ()
        self.num_sharing = 0
        self._policy = policy
        self._times = times or LockstepTimes()
        self._lateness = Lateness(
            self._times.back_off_s, self._times.max_back_off_s, self._times.forgiven_after
        )
        self._wait_until = inf
        self._num_in_a_row = self._num_lenders = self._num_without = 0
        self._stays = self._was_aborted = self._is_out = False

    def decide(
        self,
        rows: int,
        others: Sequence[Record | None],
        now: float,
        *,
        willing: bool,
        lenders: Sequence[Record | None] = (),
        drafts: int = 0,
        acceptance: int = 0,
        trial: int = 0,
    ) -> Decision:
        """What the next step of ``rows`` sequences is. Each verifies up to ``drafts`` drafts, and
        ``acceptance`` per cent of drafts are accepted. WAIT: ask again, with the same rows
        and drafts.

        ``trial``: the number of the trial for which the step is timed; 0: it computes sequences. It
        changes only while no spread step is under way. A member that has committed to a round then
        withdraws from it.

        ``others`` are the records of all other members in their order, ``lenders`` those of
        lenders, which a trial does not count on; None: unreadable. A member that has committed
        waits for the others whether it is still ``willing`` or not.
        """
        self.late = ()
        if trial != self.record.trial:
            self._change_trial(trial)
        self._lateness.look(others)
        seen = [self._seen(place, record) for place, record in enumerate(others)]
        if self.record.stance is not Stance.COMMITTED:
            self.record = replace(self.record, rows=rows, drafts=drafts, acceptance=acceptance)
            if not self._commit(seen, lenders, now, willing=willing):
                return self._local()
        return self._agree(seen, others, now)

    def _commit(
        self,
        seen: Sequence[Record | None],
        lenders: Sequence[Record | None],
        now: float,
        *,
        willing: bool,
    ) -> bool:
        """Commit to a round if this member and all others would take part in it. False: they do
        not, and the next step is a local one."""
        here = [self._of_this_generation(each) for each in lenders if not self.record.trial]
        self._num_lenders = sum(
            each is not None and each.stance is not Stance.UNAVAILABLE for each in here
        )
        stays_unavailable = (
            not willing
            or self._lateness.keeps_away(now)
            or (self._was_aborted and not all(map(self._has_ended, lenders)))
        )
        self._say(Stance.UNAVAILABLE if stays_unavailable else Stance.WILLING)
        present = self._present(seen)
        if stays_unavailable or len(present) < len(seen) or not self._wants(present):
            return False
        number = _highest([mine := self.record, *present])
        if self._num_in_a_row and number > mine.round:
            return False
        self._wait_until = now + self._times.wait_s
        self._commit_to(number)
        return True

    @property
    def in_step(self) -> bool:
        """True if the last that this member has launched is a step of the group, for sequences of
        its own."""
        return self._num_in_a_row > 0 and self.record.last_rows > 0

    @property
    def holds_prompts(self) -> bool:
        """True if prompts wait while this member is ``in_step``: until the next window at the
        latest, or until the group computes local steps. Without sequences they do not wait."""
        return self.in_step and self.record.round % WINDOW != 0

    def is_awaited(self, others: Sequence[Record | None]) -> bool:
        """True if all others would take part in a step, and one of them has committed to it, while
        this member takes local ones."""
        present = self._present([self._of_this_generation(record) for record in others])
        waits = [
            each.stance is Stance.COMMITTED and each.round >= self.record.round for each in present
        ]
        return self._is_out and len(waits) == len(others) and any(waits)

    def _change_trial(self, trial: int) -> None:
        if self.record.stance is Stance.COMMITTED:
            self._withdraw()
        self._num_in_a_row = 0
        self.record = replace(self.record, trial=trial)

    def use(self, policy: SpreadPolicy, table: int) -> None:
        """Decide by this policy from the next step on; ``table`` is published for the others."""
        self._policy = policy
        self.record = replace(self.record, table=table)

    def prepare_trial(self, trial: int) -> None:
        """Take part in no round until ``decide`` is called for this trial; 0: until it is called
        for sequences. No spread step is under way."""
        self._change_trial(trial)
        self._say(Stance.UNAVAILABLE)

    def mark_unavailable(self) -> None:
        """Take part in no rounds until the next decision, since prompts are launched first: the
        others need not wait for that. At that decision no spread step is under way or unread."""
        if self.record.stance is Stance.WILLING:
            self._num_in_a_row = 0
            self._say(Stance.UNAVAILABLE)

    def aborted(self, now: float) -> None:
        """A launched round was taken back, and with it those launched behind it."""
        self._was_aborted = True
        self._withdraw()
        if not self.record.last_trial:
            self._lateness.back_off(now)
            self._say(Stance.UNAVAILABLE)

    def _has_ended(self, lender: Record | None) -> bool:
        """True if a lender has no step of this generation under way."""
        if lender is None:
            return False
        others = lender.generation != self.record.generation
        return others or lender.stance is not Stance.COMMITTED

    def _local(self) -> Literal["local"]:
        self._num_in_a_row = 0
        self._is_out = True
        return LOCAL

    def _wants(self, present: Sequence[Record]) -> bool:
        mine = self.record
        if mine.trial:
            return True
        if any(o.stance is Stance.COMMITTED and o.round >= mine.round for o in present):
            return True
        if self._num_in_a_row:
            return self._stays
        loads = [mine.load, *(other.load for other in present)]
        return self._policy.enters(loads, len(loads) + self._num_lenders)

    def _commit_to(self, number: int) -> None:
        """Commit to a round with the rows and drafts that the record has."""
        self.record = replace(
            self.record, round=number, stance=Stance.COMMITTED, lenders=self._num_lenders
        )

    def _agree(
        self, seen: Sequence[Record | None], others: Sequence[Record | None], now: float
    ) -> Decision:
        number = self.record.round
        answers = [self._answer(each, number) for each in seen]
        if together := agreed([self.record, *seen], number):
            members = [self.record, *filter(None, seen)]
            self.loads = tuple(member.load_in(number) for member in members)
            self.num_sharing = len(members) + together.lenders
            return self._launch(together)
        waits_for = [i for i, answer in enumerate(answers) if answer is None]
        present = self._present([seen[i] for i in waits_for])
        if len(present) < len(waits_for):
            self._withdraw()
            return LOCAL
        if now >= self._wait_until:
            self._withdraw()
            if not self.record.trial:
                self.late = tuple(waits_for)
                self._lateness.missed(waits_for, others, now)
                self._say(Stance.UNAVAILABLE)
            return LOCAL
        if (highest := _highest(present)) > number:
            if self._num_in_a_row:
                self._withdraw()
                return LOCAL
            self._commit_to(highest)
            return self._agree(seen, others, now)
        return WAIT

    def _answer(self, record: Record | None, number: int) -> int | None:
        """The rows with which a member has committed to this round, for the same trial."""
        if record is None or record.trial_in(number) != self.record.trial:
            return None
        return record.committed_to(number)

    def _launch(self, together: Together) -> Together:
        mine = self.record
        self.record = replace(
            mine,
            round=mine.round + 1,
            stance=Stance.WILLING,
            last_round=mine.round,
            last_rows=mine.rows,
            last_lenders=mine.lenders,
            last_drafts=mine.drafts,
            last_trial=mine.trial,
            beat=mine.beat + 1,
        )
        pays = self._policy.stays(self.loads, self.num_sharing)
        self._num_without = 0 if pays else self._num_without + 1
        self._stays = pays or (len(self.loads) == 1 and self._num_without < MOST_WITHOUT)
        self._was_aborted = False
        self._num_in_a_row += 1
        self._is_out = False
        self._lateness.launched()
        return together

    def _withdraw(self) -> None:
        """Give up the round for good."""
        self._num_in_a_row = 0
        self.record = replace(self.record, round=self.record.round + 1)
        self._say(Stance.WILLING)

    def _say(self, stance: Stance) -> None:
        self.record = replace(self.record, stance=stance, beat=self.record.beat + 1)

    def _seen(self, place: int, record: Record | None) -> Record | None:
        return None if self._lateness.is_late(place) else self._of_this_generation(record)

    def _of_this_generation(self, record: Record | None) -> Record | None:
        return record if record and record.generation == self.record.generation else None

    def _present(self, records: Sequence[Record | None]) -> list[Record]:
        """Records of the members that take part, or would, in a round of this member's trial."""
        here = [each for each in records if each and each.stance is not Stance.UNAVAILABLE]
        return [each for each in here if each.trial == self.record.trial]


def _highest(records: Sequence[Record]) -> int:
    return max(each.round for each in records)
