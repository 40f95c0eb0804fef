"""Which steps an idle group times, and the table that comes of them."""

import pytest

from decode.spread_table import LOCAL, StepTable, StepTime, shipped
from decode.spread_trials import Point, TimedStep, corrected, differences, points, suffice
from engine.spread.shapes import draft_shapes, plain_shapes


def timed(sharing: int, rows: int, drafts: int = 0, *, factor: float = 1.0) -> TimedStep:
    ms = factor * shipped().even_ms(sharing, rows, drafts)
    num_tokens = rows * (1 + drafts) * sharing
    return TimedStep(sharing, rows, drafts, num_tokens, ms)


def test_sizes_with_drafts_are_timed_as_far_as_there_are_graphs() -> None:
    assert [each.rows for each in points(plain_shapes((8, 64)))] == [16, 64, 8, 32]
    found = points(draft_shapes(3))
    assert len(found) == 11
    assert found[0] == Point(16)
    assert {each for each in found if each.drafts} == {
        Point(rows, 3) for rows in (4, 8, 16, 32, 64)
    }
    assert {each.drafts for each in points(draft_shapes(2))} == {0, 2}


def test_steps_that_took_as_long_as_the_table_says_change_nothing() -> None:
    steps = [timed(sharing, rows, drafts) for sharing in (LOCAL, 2)
             for rows, drafts in points(draft_shapes(3))]  # fmt: skip
    table = corrected(shipped(), steps, 2)
    for step in shipped().steps:
        assert table.even_ms(*step[:3]) == pytest.approx(step.ms)
    assert table.experts.read_ms == pytest.approx(shipped().experts.read_ms)


def test_times_between_and_beside_the_timed_ones_are_scaled_like_these() -> None:
    steps = [timed(LOCAL, rows, factor=0.5) for rows in (16, 64)]
    steps += [timed(2, 16, factor=0.6), timed(2, 64, factor=0.8)]
    table, before = corrected(shipped(), steps, 2), shipped()
    for rows, drafts in ((1, 0), (16, 0), (48, 0), (256, 0), (32, 3)):
        assert table.local_ms(rows, drafts) == pytest.approx(0.5 * before.local_ms(rows, drafts))
    for rows, factor in ((8, 0.6), (16, 0.6), (32, 0.6 + 0.2 / 3), (64, 0.8), (128, 0.8)):
        for sharing in (2, 4):
            ms = before.even_ms(sharing, rows, 0)
            assert table.even_ms(sharing, rows, 0) == pytest.approx(factor * ms)
    assert table.experts.read_ms == pytest.approx(0.5 * before.experts.read_ms)


def test_only_steps_of_the_groups_own_size_count_as_measured() -> None:
    steps = [timed(LOCAL, 16), timed(3, 16)]
    table = corrected(shipped(), steps, 3)
    sources = [table.source_of(sharing) for sharing in (1, 2, 3, 4, 8)]
    assert sources == ["measured", "estimated", "measured", "estimated", "estimated"]
    five = corrected(shipped(), [timed(LOCAL, 16), timed(5, 16)], 5)
    assert five.source_of(5) == "measured", "a size that the table had no steps of"


def test_a_step_with_lenders_is_taken_for_one_of_as_many_tokens() -> None:
    of_one = TimedStep(3, 32, 0, 32, 9.0)
    table = corrected(shipped(), [timed(LOCAL, 32), of_one], 3)
    assert table.spread_ms(3, 32, 0, 32) == pytest.approx(9.0)
    assert table.spread_ms(3, 32, 0, 96) > 9.1


def test_steps_with_drafts_that_the_table_lacks_are_ignored() -> None:
    base = StepTable([StepTime(LOCAL, 8, 0, 5.0), StepTime(2, 8, 0, 4.0)], "measured")
    steps = [
        TimedStep(LOCAL, 8, 0, 8, 6.0), TimedStep(2, 8, 0, 16, 5.0),
        TimedStep(LOCAL, 8, 3, 32, 9.0), TimedStep(2, 8, 3, 64, 9.0),
    ]  # fmt: skip
    table = corrected(base, steps, 2)
    assert [step.ms for step in table.steps] == [6.0, 5.0]
    assert differences(base, steps) == {False: (1.2, 1.2), True: (1.25, 1.25)}


def test_half_of_the_steps_of_either_kind_are_enough() -> None:
    local = [timed(LOCAL, rows) for rows in (8, 16, 32)]
    spread = [timed(2, rows) for rows in (8, 16, 32)]
    assert suffice([*local, *spread], 6)
    assert not suffice([*local, *spread[:2]], 6)
    assert not suffice([*local[:2], *spread], 6)
    assert not suffice([], 0)
