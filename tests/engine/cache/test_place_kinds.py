"""How likely a prompt goes on from a place, by what places like it have in common."""

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.place_kinds import MAX_COUNTED, Kind, UseOdds
from transport.wire.prefix import PrefixKeys

PAGE = 4


def place(number: int, num_tokens: int = 8) -> PrefixKeys:
    return PrefixKeys("model", "", array("i", [number] * num_tokens), PAGE)


def note(odds: UseOdds, kind: Kind, number: int, *, used: bool, num_tokens: int = 8) -> bytes:
    keys = place(number, num_tokens)
    odds.note_kept(keys.pages_up_to(num_tokens // PAGE), kind, num_tokens)
    if used:
        odds.note_prompt(keys, num_tokens, PAGE)
    return keys.prefix(num_tokens)


def test_odds_are_equal_at_first_and_follow_where_prompts_go_on() -> None:
    odds = UseOdds()
    assert odds.of(b"unknown") == 0.5
    for number in range(30):
        note(odds, "end", number, used=True)
        answer = note(odds, "answer", 100 + number, used=False)
    end = note(odds, "end", 200, used=False)
    assert odds.of(answer) < 0.2 < 0.4 < odds.of(end) < 1


def test_lengths_differ_and_a_length_seen_little_has_the_odds_of_its_kind() -> None:
    odds = UseOdds()
    for number in range(50):
        short = note(odds, "end", number, used=False)
        note(odds, "end", 50 + number, used=True, num_tokens=4096)
    long = note(odds, "end", 200, used=False, num_tokens=4096)
    new = note(odds, "end", 100, used=False, num_tokens=20_000)
    assert odds.of(short) < odds.of(new) < odds.of(long)


def test_a_prompt_goes_on_from_the_longest_place_that_leaves_it_a_token() -> None:
    odds = UseOdds()
    whole, alike = place(1, 16), place(2, 16)
    for each in (whole, alike):
        for num_tokens, kind in ((4, "boundary"), (8, "question"), (16, "end")):
            odds.note_kept(each.pages_up_to(num_tokens // PAGE), kind, num_tokens)
    before = [odds.of(alike.prefix(num_tokens)) for num_tokens in (4, 8, 16)]
    odds.note_prompt(whole, 15, PAGE)
    boundary, question, end = [odds.of(alike.prefix(num_tokens)) for num_tokens in (4, 8, 16)]
    assert question - before[1] > max(boundary - before[0], end - before[2])


def test_older_counts_count_less() -> None:
    odds = UseOdds()
    for number in range(3 * MAX_COUNTED):
        note(odds, "end", number, used=False)
    for number in range(3 * MAX_COUNTED, 5 * MAX_COUNTED):
        note(odds, "end", number, used=True)
    last = note(odds, "end", 5 * MAX_COUNTED, used=False)
    assert odds.of(last) == pytest.approx(0.9, abs=0.1)


class Conversation:
    """Prompts that each go on from the one before, with one new page."""

    def __init__(self, odds: UseOdds, number: int) -> None:
        self.odds = odds
        self.number = number
        self.num_tokens = 0

    def turn(self, num_pages: int = 1) -> bytes:
        self.num_tokens += num_pages * PAGE
        keys = place(self.number, self.num_tokens + 1)
        self.odds.note_prompt(keys, self.num_tokens, PAGE)
        return self.keep("end", self.num_tokens)

    def keep(self, kind: Kind, num_tokens: int) -> bytes:
        keys = place(self.number, num_tokens).pages_up_to(num_tokens // PAGE)
        if kind == "answer":  # in no prompt
            keys[-1] = b"answer" + keys[-1]
        self.odds.note_kept(keys, kind, num_tokens)
        return keys[-1]


def test_the_end_of_a_turn_is_used_no_more_once_the_next_turn_has_its_own() -> None:
    odds = UseOdds()
    for number in range(50):
        conversation = Conversation(odds, number)
        passed, last = [conversation.turn() for _ in range(8)][-2:]
    assert odds.of(passed) < 0.1 < 0.6 < odds.of(last)


def test_an_answer_does_not_pass_the_prompt_that_it_answers() -> None:
    odds = UseOdds()
    for number in range(50):
        conversation = Conversation(odds, number)
        for _ in range(8):
            last = conversation.turn()
            conversation.keep("answer", conversation.num_tokens + PAGE)
    assert odds.of(last) > 0.6


def test_a_later_turn_is_likelier_to_be_followed_where_later_turns_are() -> None:
    odds = UseOdds()
    for number in range(200):
        first = Conversation(odds, number)
        new = first.turn()
        if number % 4 == 0:
            later = [first.turn() for _ in range(5)][-1]
    assert odds.of(new) < 0.4 < 0.6 < odds.of(later)


def test_what_many_prompts_go_on_from_begins_no_later_turn() -> None:
    odds = UseOdds()
    shared = place(1, 2 * PAGE)
    odds.note_kept(shared.pages_up_to(2), "boundary", 2 * PAGE)
    for number in range(5):
        ids = array("i", [1] * 2 * PAGE + [100 + number] * PAGE)
        keys = PrefixKeys("model", "", ids, PAGE)
        odds.note_prompt(keys, 3 * PAGE, PAGE)
        odds.note_kept(keys.pages_up_to(3), "end", 3 * PAGE)
    assert odds._places[shared.pages(2)].num_uses == 5
    ends = [each for each in odds._places.values() if each.kind == "end"]
    assert [each.later_turn for each in ends] == [True, *[False] * 4]
    assert {each.start for each in ends} == {2 * PAGE}


def test_turns_with_many_new_tokens_have_odds_of_their_own() -> None:
    odds = UseOdds()
    for number in range(100):
        conversation = Conversation(odds, number)
        conversation.turn()
        if number % 2:
            large = conversation.turn(num_pages=1000)
        else:
            conversation.turn()
            small = conversation.turn()
    assert odds.of(large) < odds.of(small)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_counts_are_never_negative_and_odds_are_between_0_and_1(seed: int) -> None:
    rng = random.Random(seed)
    odds, conversations = UseOdds(), [Conversation(UseOdds(), n) for n in range(4)]
    for _ in range(rng.randint(1, 200)):
        conversation = rng.choice(conversations)
        conversation.odds = odds
        if rng.random() < 0.6:
            conversation.turn(rng.randint(1, 3))
        elif conversation.num_tokens:
            kind: Kind = rng.choice(["question", "branch", "answer", "copied"])
            conversation.keep(kind, PAGE * rng.randint(1, conversation.num_tokens // PAGE + 1))
    assert all(num >= 0 for num in odds._num_kept.values())
    assert all(0 < odds.of(key) < 1 for key in odds._places)
