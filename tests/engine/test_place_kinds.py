"""How likely a prompt goes on from a place, by its kind and length."""

from array import array

import pytest

from engine.cache.place_kinds import MAX_COUNTED, Kind, UseOdds
from transport.wire.prefix import PrefixKeys

PAGE = 4


def place(number: int, num_tokens: int = 8) -> PrefixKeys:
    return PrefixKeys("model", "", array("i", [number] * num_tokens), PAGE)


def note(odds: UseOdds, kind: Kind, number: int, *, used: bool, num_tokens: int = 8) -> bytes:
    keys = place(number, num_tokens)
    odds.note_kept(keys.prefix(num_tokens), kind, num_tokens)
    if used:
        odds.note_prompt(keys, num_tokens, PAGE)
    return keys.prefix(num_tokens)


def test_odds_are_equal_at_first_and_follow_where_prompts_go_on() -> None:
    odds = UseOdds()
    assert odds.of(b"unknown") == 0.5
    ends = [note(odds, "end", number, used=True) for number in range(30)]
    answers = [note(odds, "answer", 100 + number, used=False) for number in range(30)]
    assert odds.of(answers[0]) < 0.2 < 0.4 < odds.of(ends[0]) < 1


def test_lengths_differ_and_a_length_seen_little_has_the_odds_of_its_kind() -> None:
    odds = UseOdds()
    for number in range(50):
        short = note(odds, "end", number, used=False)
        long = note(odds, "end", 50 + number, used=True, num_tokens=4096)
    new = note(odds, "end", 100, used=False, num_tokens=20_000)
    assert odds.of(short) < odds.of(new) < odds.of(long)


def test_a_prompt_goes_on_from_the_longest_place_that_leaves_it_a_token() -> None:
    odds = UseOdds()
    whole = place(1, 16)
    for num_tokens, kind in ((4, "boundary"), (8, "question"), (16, "end")):
        odds.note_kept(whole.prefix(num_tokens), kind, num_tokens)
    before = [odds.of(whole.prefix(num_tokens)) for num_tokens in (4, 8, 16)]
    odds.note_prompt(place(1, 16), 15, PAGE)
    boundary, question, end = [odds.of(whole.prefix(num_tokens)) for num_tokens in (4, 8, 16)]
    assert question - before[1] > max(boundary - before[0], end - before[2])


def test_older_counts_count_less() -> None:
    odds = UseOdds()
    for number in range(3 * MAX_COUNTED):
        note(odds, "end", number, used=False)
    for number in range(3 * MAX_COUNTED, 5 * MAX_COUNTED):
        last = note(odds, "end", number, used=True)
    # Each used place may be used again, which is counted as one more.
    assert odds.of(last) == pytest.approx(0.45, abs=0.06)
