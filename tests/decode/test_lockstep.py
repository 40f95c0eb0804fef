"""Members of a spread group that decide from each other's records, in every order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from decode.lending import LendingRounds
from decode.lockstep import LOCAL, MOST_WITHOUT, WAIT, WINDOW, Decision, Lockstep, LockstepTimes
from decode.spread_policy import SpreadPolicy, require_spread
from decode.spread_record import Record, Stance
from decode.spread_round import Together

TIMES = LockstepTimes(wait_s=1.0, back_off_s=1.0, max_back_off_s=4.0)


@dataclass
class Member:
    """What it publishes is what it has decided last; ``wait_began`` is of the wait under way."""

    lockstep: Lockstep
    published: Record | None = None
    willing: bool = True
    rows: int = 8
    drafts: int = 0
    trial: int = 0
    wait_began: float | None = None
    launched: dict[int, Together] = field(default_factory=dict)
    trials: dict[int, int] = field(default_factory=dict)
    let_down: bool = False
    last_was_together: bool = False

    def decide(
        self, others: "list[Member]", now: float, lenders: "Sequence[Record | None]" = ()
    ) -> Decision:
        seen = [other.published for other in others]
        decision = self.lockstep.decide(
            self.rows, seen, now, willing=self.willing, lenders=lenders, drafts=self.drafts,
            trial=self.trial,
        )  # fmt: skip
        self.published = self.lockstep.record
        self.let_down |= bool(self.lockstep.late)
        if isinstance(decision, Together):
            assert decision.round not in self.launched, "launched twice"
            if self.last_was_together:
                assert decision.round == max(self.launched) + 1, "behind an unread round"
            self.launched[decision.round] = decision
            self.trials[decision.round] = self.trial
        if decision != WAIT:
            self.last_was_together = decision != LOCAL
        if decision == WAIT:
            self.wait_began = now if self.wait_began is None else self.wait_began
        else:
            self.wait_began = None
        return decision


def group(*rows: int, enters: int | str = 16) -> list[Member]:
    members = [Member(Lockstep(1, SpreadPolicy(str(enters)), TIMES), rows=each) for each in rows]
    for member in members:
        member.published = member.lockstep.record
    return members


def turn(members: list[Member], now: float = 0.0) -> list[Decision]:
    return [m.decide([o for o in members if o is not m], now) for m in members]


def run_until_together(
    members: list[Member], now: float = 0.0, lenders: Sequence[Record | None] = ()
) -> list[Together]:
    """The launches of one round, asking all in turn."""
    launched: dict[int, Together] = {}
    for _ in range(10):
        for place, member in enumerate(members):
            if place in launched:
                continue
            decision = member.decide([o for o in members if o is not member], now, lenders)
            if isinstance(decision, Together):
                launched[place] = decision
        if len(launched) == len(members):
            return [launched[place] for place in range(len(members))]
    raise AssertionError("no round was launched by all")


def test_all_launch_the_same_round_in_the_graph_for_the_largest() -> None:
    members = group(3, 20, 0)
    for number in range(1, 6):
        members[0].rows = number
        launched = run_until_together(members)
        assert launched == [Together(launched[0].round, 20, 20 + number)] * 3
        assert launched[0].round == number


def test_drafts_count_as_tokens_and_the_most_of_a_member_are_verified() -> None:
    members = group(4, 2, 0)
    assert turn(members) == turn(members) == [LOCAL] * 3
    members[0].drafts, members[1].drafts = 1, 3  # 8 and 8 tokens
    launched = run_until_together(members)
    assert launched == [Together(1, 4, 16, 0, 3)] * 3
    lender = LendingRounds(1)
    records = [member.published for member in members]
    assert lender.decide(records, willing=True) == Together(1, 4, 16, 0, 3)
    members[1].drafts = 0
    assert run_until_together(members) == [Together(2, 4, 10, 0, 1)] * 3
    assert turn(members) == [LOCAL] * 3, "10 tokens are too few to stay"


def test_too_few_rows_are_computed_locally_without_a_wait() -> None:
    members = group(3, 4, 8)
    for _ in range(5):
        assert turn(members) == [LOCAL, LOCAL, LOCAL]


def test_a_group_whose_rows_fall_leaves_at_the_same_round_without_a_wait() -> None:
    members = group(8, 8)
    run_until_together(members)
    members[0].rows = 3  # 11 in all: below three quarters of 16
    run_until_together(members)
    assert turn(members) == [LOCAL, LOCAL]
    members[0].rows = 7
    assert turn(members) == [LOCAL, LOCAL], "15 rows do not enter"
    members[0].rows = 8
    run_until_together(members)


def test_a_member_with_prompts_ends_the_others_wait_at_once() -> None:
    members = group(8, 8)
    run_until_together(members)
    first, second = members
    assert first.decide([second], 0.0) == WAIT
    second.lockstep.mark_unavailable()
    second.published = second.lockstep.record
    assert first.decide([second], 0.0) == LOCAL
    assert not first.let_down
    second.willing = False
    assert turn(members) == [LOCAL, LOCAL]
    second.willing = True
    run_until_together(members)


def test_members_in_lockstep_turn_to_prompts_in_the_same_rounds() -> None:
    first, second = members = group(8, 8)
    assert not first.lockstep.holds_prompts
    windows = []
    for _ in range(3 * WINDOW):
        number = run_until_together(members)[0].round
        assert first.lockstep.holds_prompts == second.lockstep.holds_prompts
        if not first.lockstep.holds_prompts:
            windows.append(number + 1)
    assert windows == [WINDOW, 2 * WINDOW, 3 * WINDOW]


def test_prompts_between_two_steps_end_what_follows_one_another() -> None:
    first, second = members = group(8, 8)
    assert not first.lockstep.in_step
    run_until_together(members)
    assert first.lockstep.in_step
    first.lockstep.mark_unavailable()
    first.published = first.lockstep.record
    assert not first.lockstep.in_step
    assert second.decide([first], 0.0) == LOCAL
    assert run_until_together(members)[0].round == 2


def test_a_member_is_awaited_once_another_commits_while_it_takes_local_steps() -> None:
    first, second = members = group(8, 8)
    run_until_together(members)
    assert not second.lockstep.is_awaited([first.published])
    first.willing = second.willing = False
    assert turn(members) == turn(members) == [LOCAL, LOCAL]
    first.willing = True
    assert first.decide([second], 0.0) == LOCAL
    assert not second.lockstep.is_awaited([first.published]), "the other one is only willing"
    second.willing = True
    assert second.decide([first], 0.0) == WAIT
    assert first.lockstep.is_awaited([second.published])
    assert not first.lockstep.is_awaited([None])
    run_until_together(members)
    assert not first.lockstep.is_awaited([second.published])


def test_no_prompt_is_held_while_the_group_computes_local_steps() -> None:
    first, second = members = group(8, 8)
    run_until_together(members)
    assert first.lockstep.holds_prompts
    assert first.decide([second], 0.0) == WAIT
    assert first.decide([second], 5.0) == LOCAL, "the second does not come"
    assert not first.lockstep.holds_prompts


def test_a_committed_member_launches_with_the_others_though_it_would_not_any_more() -> None:
    first, second = members = group(8, 8)
    run_until_together(members)
    assert first.decide([second], 0.0) == WAIT
    first.willing = False
    launched = run_until_together(members)
    assert [each.rows for each in launched] == [8, 8]


def test_a_stalled_member_costs_one_wait_and_counts_again_when_it_goes_on() -> None:
    first, second, third = members = group(8, 8, 8)
    run_until_together(members)
    rest = [first, second]
    assert [m.decide([o for o in members if o is not m], 1.0) for m in rest] == [WAIT, WAIT]
    assert first.decide([second, third], 1.9) == WAIT
    assert first.decide([second, third], 2.0) == LOCAL
    assert first.lockstep.late == (1,), "the third is the second of the others"
    second.decide([first, third], 2.0)
    for now in (2.1, 3.5, 50.0, 100.0):
        assert [m.decide([o for o in members if o is not m], now) for m in rest] == [LOCAL, LOCAL]
    run_until_together(members, now=200.0)


def test_a_member_that_lets_the_others_down_again_and_again_is_asked_ever_more_rarely() -> None:
    first, second = group(8, 8)
    now, waits = 0.0, []
    for _ in range(400):
        decision = first.decide([second], now)
        if decision == WAIT and not (waits and waits[-1] + 1.0 >= now):
            waits.append(now)
        second.published = Record(1, 1, Stance.WILLING, 8, beat=int(now * 10))
        now += 0.1
    assert len(waits) <= 12


def test_an_aborted_round_and_the_one_behind_it_are_given_up() -> None:
    members = group(8, 8)
    run_until_together(members)
    number = run_until_together(members)[0].round
    for member in members:
        member.lockstep.aborted(1.0)
        member.published = member.lockstep.record
    assert turn(members, 1.5) == [LOCAL, LOCAL], "they stay unavailable for a while"
    turn(members, 3.0)
    assert run_until_together(members, 3.0)[0].round > number + 1


def test_steps_with_prompts_between_them_make_the_wait_after_a_late_one_short_again() -> None:
    times = LockstepTimes(back_off_s=1.0, max_back_off_s=4.0, forgiven_after=5)
    members = [Member(Lockstep(1, SpreadPolicy("16"), times)) for _ in range(2)]

    def abort(now: float) -> None:
        run_until_together(members, now)
        for member in members:
            member.lockstep.aborted(now)
            member.published = member.lockstep.record
        assert turn(members, now) == [LOCAL, LOCAL], "they stay unavailable for a while"

    for now in (0.0, 5.0, 10.0):
        abort(now)
    now = 15.0
    for _ in range(5):
        run_until_together(members, now)
        members[0].willing = False
        assert turn(members, now) == [LOCAL, LOCAL], "one computes prompts"
        members[0].willing = True
    abort(now)
    assert turn(members, now + 0.9) == [LOCAL, LOCAL]
    run_until_together(members, now + 1.1)


def test_a_member_of_another_generation_takes_no_part() -> None:
    first, second = members = group(8, 8)
    second.lockstep = Lockstep(2, SpreadPolicy("16"), TIMES)
    for _ in range(4):
        assert turn(members) == [LOCAL, LOCAL]
    second.published = None  # unreadable
    assert first.decide([second], 0.0) == LOCAL


def test_a_lender_counts_where_it_is_decided_whether_sharing_pays() -> None:
    first, second = members = group(8, 8, enters="auto")
    lender = LendingRounds(1)
    lender.decide([member.published for member in members], willing=False)
    for _ in range(3):
        assert first.decide([second], 0.0, [lender.record]) == LOCAL
        assert second.decide([first], 0.0, [lender.record]) == LOCAL, "16 rows pay for three"
    lender.decide([member.published for member in members], willing=True)
    launched = run_until_together(members, lenders=[lender.record])
    assert launched == [Together(launched[0].round, 8, 16, 1)] * 2


def test_a_lone_member_shares_its_rows_with_lenders_only() -> None:
    (member,) = group(20)
    lender = LendingRounds(1)
    assert member.decide([], 0.0, [lender.record]) == LOCAL
    assert lender.decide([member.published], willing=True) is None, "there is no round yet"
    decision = member.decide([], 0.0, [lender.record])
    assert decision == Together(1, 20, 20, 1)
    assert lender.decide([member.published], willing=True) == decision
    assert lender.record.stance is Stance.COMMITTED
    lender.done()
    assert lender.decide([member.published], willing=True) is None, "not twice"
    lender.mark_unavailable()
    for number in range(2, MOST_WITHOUT + 2):
        alone = member.decide([], 0.0, [lender.record])
        assert alone == Together(number, 20, 20), "it may soon come back"
    assert member.decide([], 0.0, [lender.record]) == LOCAL


def test_a_lender_comes_to_the_last_round_that_all_have_committed_to() -> None:
    lender = LendingRounds(1)
    ahead = Record(1, 7, Stance.COMMITTED, 5, last_round=6, last_rows=4)
    behind = Record(1, 7, Stance.WILLING, 9, last_round=6, last_rows=8)
    assert lender.decide([ahead, behind], willing=False) is None
    assert lender.decide([ahead, None], willing=True) is None
    assert lender.decide([ahead, Record(2, 7, Stance.COMMITTED, 1)], willing=True) is None
    assert lender.decide([ahead, behind], willing=True) == Together(6, 8, 12)
    lender.done()
    assert lender.decide([ahead, behind], willing=True) is None
    both = [ahead, Record(1, 7, Stance.COMMITTED, 9, last_round=6, last_rows=8)]
    assert lender.decide(both, willing=True) == Together(7, 9, 14)


def test_a_lender_has_two_steps_under_way_at_most() -> None:
    lender = LendingRounds(1)
    first, second, third = (Record(1, number, Stance.COMMITTED, 4) for number in (5, 6, 7))
    assert lender.decide([first], willing=True) == Together(5, 4, 4)
    assert lender.decide([second], willing=True) == Together(6, 4, 4)
    assert lender.decide([third], willing=True) is None
    lender.done()
    assert (lender.record.stance, lender.record.last_round) == (Stance.COMMITTED, 5)
    assert lender.decide([third], willing=False) is None
    assert lender.record.stance is Stance.COMMITTED, "one is still under way"
    lender.done()
    assert (lender.record.stance, lender.record.last_round) == (Stance.WILLING, 6)
    assert lender.decide([third], willing=True) == Together(7, 4, 4)


def test_members_begin_anew_only_when_no_lender_computes_for_an_aborted_round() -> None:
    members = group(8, 8)
    lender = LendingRounds(1)
    run_until_together(members)
    lender.decide([member.published for member in members], willing=True)
    assert lender.record.stance is Stance.COMMITTED
    for member in members:
        member.lockstep.aborted(1.0)
        member.published = member.lockstep.record
    for seen in (lender.record, None):
        for _ in range(3):
            for member in members:
                others = [other for other in members if other is not member]
                assert member.decide(others, 5.0, [seen]) == LOCAL
                assert member.published is not None
                assert member.published.stance is Stance.UNAVAILABLE
    lender.done()
    run_until_together(members, 5.0, [lender.record])


def test_members_of_one_trial_launch_together_whatever_it_promises() -> None:
    first, second = members = group(1, 1)
    first.trial = 1
    for _ in range(4):
        assert turn(members) == [LOCAL, LOCAL], "the other one is not at this trial"
    second.trial = 1
    assert run_until_together(members)[0].rows == 1
    assert run_until_together(members)[0].rows == 1
    second.trial, second.rows = 0, 64
    for _ in range(4):
        assert second.decide([first], 0.0) == LOCAL, "sequences of requests join no trial"
        assert first.decide([second], 0.0) == LOCAL
    first.trial = 0
    run_until_together(members)


def test_a_wait_in_vain_within_a_trial_costs_no_time_apart() -> None:
    first, second = members = group(8, 8)
    first.trial = second.trial = 2
    assert turn(members) == [LOCAL, WAIT]
    assert second.decide([first], 1.0) == LOCAL
    assert second.lockstep.late == ()
    run_until_together(members, 1.0)


def test_a_member_that_gets_work_withdraws_from_a_trial() -> None:
    first, second = members = group(8, 8)
    first.trial = second.trial = 1
    assert turn(members) == [LOCAL, WAIT]
    second.trial = 0
    assert second.decide([first], 0.0) == LOCAL
    assert first.decide([second], 0.0) == LOCAL
    first.trial = 0
    run_until_together(members)


def test_no_round_mixes_a_trial_with_sequences_of_requests() -> None:
    """Both have committed to the same number, each before it saw the other one's trial."""
    first, second = members = group(8, 8)
    assert turn(members) == [LOCAL, WAIT]
    first.published = Record(1, 1, Stance.COMMITTED, 8, trial=1)
    both = [first.published, second.published]
    assert LendingRounds(1).decide(both, willing=True) is None
    assert second.decide([first], 0.0) == LOCAL


def test_settings_name_themselves() -> None:
    for right in ("auto", "off", "1", "512"):
        require_spread(right)
    for wrong in ("0", "-1", "always", ""):
        with pytest.raises(ValueError, match="spread"):
            require_spread(wrong)


class GroupMachine(RuleBasedStateMachine):
    """Members in any order, late, stalled, dead or unwilling. Rounds are launched by the same rule
    by all, no wait is longer than its deadline, and a round that one launches and another one does
    not has a cause: a member that died, or that was waited for in vain."""

    @initialize(rows=st.lists(st.integers(0, 32), min_size=2, max_size=4))
    def begin(self, rows: list[int]) -> None:
        self.members = group(*rows)
        self.dead: set[int] = set()
        self.lender = LendingRounds(1)
        self.now = 0.0
        self.disturbed = False

    def _alive(self, place: int) -> Member | None:
        place %= len(self.members)
        return None if place in self.dead else self.members[place]

    @rule(place=st.integers(0, 3), rows=st.integers(0, 32), drafts=st.integers(0, 3))
    def decide(self, place: int, rows: int, drafts: int = 0) -> None:
        member = self._alive(place)
        if member is None:
            return
        if member.wait_began is None:
            member.rows, member.drafts = rows, drafts
        others = [other for other in self.members if other is not member]
        member.decide(others, self.now, [self.lender.record])
        if member.wait_began is not None:
            assert self.now < member.wait_began + TIMES.wait_s

    @rule(times=st.integers(1, 30), willing=st.booleans())
    def all_decide(self, times: int, willing: bool) -> None:
        for _ in range(times):
            for place in range(len(self.members)):
                member = self._alive(place)
                if member is not None:
                    member.willing = member.willing or willing
                    self.decide(place, max(member.rows, 8))

    @rule(place=st.integers(0, 3), willing=st.booleans())
    def get_prompts(self, place: int, willing: bool) -> None:
        if member := self._alive(place):
            member.willing = willing
            if not willing and member.wait_began is None:
                member.lockstep.mark_unavailable()
                member.published = member.lockstep.record
                member.last_was_together = False

    @rule(place=st.integers(0, 3), trial=st.integers(0, 2))
    def change_trial(self, place: int, trial: int) -> None:
        if (member := self._alive(place)) and trial != member.trial:
            self._change_trial(member, trial)

    @rule(trial=st.integers(0, 2))
    def all_change_trial(self, trial: int) -> None:
        for place in range(len(self.members)):
            if (member := self._alive(place)) and trial != member.trial:
                self._change_trial(member, trial)

    def _change_trial(self, member: Member, trial: int) -> None:
        """With no spread step unread; whoever has committed withdraws."""
        member.trial, member.last_was_together = trial, False
        self.disturbed |= member.wait_began is not None
        member.wait_began = None

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.25, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(place=st.integers(0, 3), torn=st.booleans())
    def die(self, place: int, torn: bool) -> None:
        if len(self.dead) + 1 < len(self.members) and (member := self._alive(place)):
            self.dead.add(place % len(self.members))
            self.disturbed = True
            if torn:
                member.published = None

    @rule(place=st.integers(0, 3))
    def abort(self, place: int) -> None:
        """As the GPU does for a round that not all take part in, or by a fault of its own."""
        if (member := self._alive(place)) and member.launched:
            member.lockstep.aborted(self.now)
            member.published = member.lockstep.record
            member.wait_began = None
            member.last_was_together = False
            self.disturbed = True

    @rule(willing=st.booleans(), ends=st.booleans(), stays_on=st.booleans())
    def lend(self, willing: bool, ends: bool, stays_on: bool) -> None:
        """A lender comes, ends its step, or gets prompts; its process may stand still in a step."""
        if self.lender.record.stance is Stance.COMMITTED:
            if ends:
                self.lender.done()
            return
        records = [member.published for member in self.members]
        lent = self.lender.decide(records, willing=willing)
        for member in self.members if lent else []:
            assert member.published is not None
            assert member.published.committed_to(lent.round) is not None
        if lent and not stays_on:
            self.lender.done()

    @invariant()
    def every_launch_of_a_round_is_the_same(self) -> None:
        by_round: dict[int, Together] = {}
        for member in getattr(self, "members", []):
            for number, together in member.launched.items():
                assert by_round.setdefault(number, together) == together

    @invariant()
    def a_round_is_launched_by_members_of_one_trial(self) -> None:
        by_round: dict[int, int] = {}
        for member in getattr(self, "members", []):
            for number, trial in member.trials.items():
                assert by_round.setdefault(number, trial) == trial

    @invariant()
    def a_round_that_not_all_launch_has_a_cause(self) -> None:
        members = getattr(self, "members", [])
        if not members or self.disturbed or any(member.let_down for member in members):
            return
        for number in {number for member in members for number in member.launched}:
            for member in members:
                still_may = member.lockstep.record.committed_to(number) is not None
                assert number in member.launched or still_may


GroupMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestLockstep = GroupMachine.TestCase
