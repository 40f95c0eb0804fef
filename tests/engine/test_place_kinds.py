"""How likely a state is used, by the kind of its place."""

import pytest

from engine.cache.place_kinds import MAX_COUNTED, UseOdds


def test_odds_are_equal_at_first_and_follow_what_was_used() -> None:
    odds = UseOdds()
    assert odds.of("end") == odds.of("answer") == 0.5
    for _ in range(10):
        odds.note_kept("end")
        odds.note_kept("answer")
    odds.note_used("end")
    assert odds.of("end") == pytest.approx(2 / 12)
    assert odds.of("answer") == pytest.approx(1 / 12)


def test_older_counts_count_less() -> None:
    odds = UseOdds()
    for _ in range(20 * MAX_COUNTED):
        odds.note_kept("end")
    for _ in range(MAX_COUNTED):
        odds.note_kept("end")
        odds.note_used("end")
    assert odds.of("end") > 0.5


def test_odds_stay_between_0_and_1_where_uses_come_after_their_count_was_halved() -> None:
    odds = UseOdds()
    for _ in range(MAX_COUNTED + 1):
        odds.note_kept("end")
    for _ in range(MAX_COUNTED + 1):
        odds.note_used("end")
    assert 0.5 < odds.of("end") < 1
