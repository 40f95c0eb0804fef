"""When members compute a step together, by a table of what steps take."""

import json
import weakref
from pathlib import Path

import pytest

from decode.spread_gain import Load
from decode.spread_policy import SpreadPolicy, spread_on
from decode.spread_table import SHIPPED, Experts, StepTable, StepTime, document, read, shipped
from engine.spread.shapes import draft_shapes

DRAFTS = tuple(range(4))
LOCAL_STEP = StepTime(1, 8, 0, 5.5)
LOCAL_STEPS = LOCAL_STEP, StepTime(1, 8, 1, 6.5)
SPREAD_STEPS = StepTime(2, 8, 0, 4.5), StepTime(2, 8, 1, 5.0)


def auto(drafts: tuple[int, ...] = (0,), table: StepTable | None = None) -> SpreadPolicy:
    return SpreadPolicy("auto", drafts, draft_shapes(drafts[-1]), table or shipped())


def alike(rows: int, members: int, acceptance: float = 0.0) -> list[Load]:
    return [Load(rows, 3, acceptance)] * members


def test_few_sequences_take_local_steps_and_more_members_need_fewer_of_each() -> None:
    policy = auto()
    enters = [
        next(rows for rows in range(1, 65) if policy.enters(alike(rows, members), members))
        for members in (2, 3, 4, 8)
    ]
    assert enters == sorted(enters, reverse=True)
    assert not policy.enters(alike(1, 4), 4)
    for members in (2, 4):
        for rows in range(1, 129):
            loads = alike(rows, members)
            assert policy.stays(loads, members) or not policy.enters(loads, members)


def test_what_was_computed_goes_with_its_policy() -> None:
    policy = auto(DRAFTS)
    loads = alike(32, 2, 0.85)
    assert policy.gain(loads, 2) == policy.gain(loads, 2) > 0.0
    assert policy.saved_ms(loads, 2, 1) > 0.0
    assert policy.draft_costs(loads, 2)
    kept = weakref.ref(policy)
    del policy
    assert kept() is None


@pytest.mark.parametrize(
    ("setting", "device", "num_gpus", "found"),
    [
        ("auto", "cuda", 2, "auto"), ("auto", "cuda", 1, "off"), ("auto", "cpu", 0, "off"),
        ("48", "cuda", 1, "48"), ("48", "cpu", 0, "48"), ("off", "cuda", 8, "off"),
    ],
)  # fmt: skip
def test_auto_is_off_without_a_second_gpu(
    setting: str, device: str, num_gpus: int, found: str
) -> None:
    assert spread_on(setting, device, num_gpus) == found


def test_no_sequence_or_no_other_member_is_no_spread_step() -> None:
    assert auto().gain([], 2) == auto().gain(alike(0, 4), 4) == 0.0
    assert auto().gain(alike(64, 1), 1) == auto().gain([Load(500), Load(0)], 2) == 0.0


def test_a_lender_and_a_member_without_sequences_share_the_experts() -> None:
    loads = [Load(24), Load(0)]
    assert auto().gain(loads, 3) > auto().gain(loads, 2) > 1.0
    assert auto().gain(loads, 2) == auto().gain(loads[:1], 2), "as a lender does"


def test_where_a_spread_step_has_no_room_for_drafts_that_are_accepted_local_ones_win() -> None:
    policy = auto(DRAFTS)
    assert policy.enters(alike(32, 2, 0.85), 2)
    assert not policy.stays(alike(192, 2, 0.85), 2), "local steps verify three of each"
    assert policy.stays(alike(192, 2, 0.0), 2), "they would all be refused"
    assert auto((0,)).enters(alike(192, 2, 0.85), 2), "nothing is drafted"


def test_drafts_cost_what_they_cost_in_spread_steps_as_far_as_there_is_room() -> None:
    policy, table = auto(DRAFTS), shipped()
    costs = policy.draft_costs(alike(32, 4), 4)
    assert costs[2] == pytest.approx(
        table.spread_ms(4, 32, 3, 32 * 4 * 4) / table.spread_ms(4, 32, 0, 32 * 4)
    )
    assert len(policy.draft_costs(alike(65, 4), 4)) == 2
    assert len(policy.draft_costs([Load(128), Load(1)], 2)) == 1
    assert policy.draft_costs(alike(129, 4), 4) == ()
    assert SpreadPolicy("auto", (3,), draft_shapes(3)).draft_costs(alike(8, 2), 2) == ()


def test_a_member_saves_what_the_others_would_take_longer_without_it() -> None:
    policy, table = auto(), shipped()
    four = table.spread_ms(4, 16, 0, 64)
    assert policy.saved_ms(alike(16, 4), 4, 0) == table.spread_ms(3, 16, 0, 48) - four > 0
    two = table.spread_ms(2, 16, 0, 32)
    assert policy.saved_ms(alike(16, 2), 2, 0) == table.local_ms(16, 0) - two
    assert policy.saved_ms([Load(0), Load(0)], 2, 0) == policy.saved_ms([], 2, 0) == 0.0


def test_fewer_tokens_than_all_members_could_have_read_fewer_experts() -> None:
    table = shipped()
    even, uneven = table.spread_ms(2, 32, 0, 64), table.spread_ms(2, 32, 0, 32)
    distinct = Experts().distinct
    assert even - uneven == pytest.approx(Experts().read_ms * (distinct(64) - distinct(32)) / 2)


def test_a_measured_table_is_believed_where_an_estimate_is_not() -> None:
    steps = [
        StepTime(sharing, rows, 0, ms)
        for rows in (8, 64)
        for sharing, ms in ((1, 10.0 + rows), (2, (10.0 + rows) / 1.06))
    ]
    loads = alike(8, 2)
    few_tokens_cost_as_many = Experts(read_ms=0.0)
    estimate = StepTable(steps, "estimated", few_tokens_cost_as_many)
    measured = StepTable(steps, "measured", few_tokens_cost_as_many)
    assert not auto(table=estimate).enters(loads, 2)
    assert auto(table=estimate).stays(loads, 2)
    assert auto(table=measured).enters(loads, 2)
    assert measured.has(8, 0), "as of the most members that were measured"
    assert not measured.has(2, 1)


def test_the_shipped_table_says_which_steps_were_measured() -> None:
    assert json.loads(SHIPPED.read_text())["source"] == "measured"
    sources = [shipped().source_of(sharing) for sharing in (1, 2, 3, 4, 8)]
    assert sources == ["measured", "measured", "estimated", "estimated", "estimated"]


def test_an_estimate_of_more_members_must_promise_more_in_a_table_of_measured_ones_too() -> None:
    steps = [StepTime(1, 8, 0, 10.6), StepTime(2, 8, 0, 10.0), StepTime(4, 8, 0, 10.0)]
    table = StepTable(steps, "measured", Experts(read_ms=0.0), estimated=(4,))
    assert auto(table=table).enters(alike(8, 2), 2)
    assert not auto(table=table).enters(alike(8, 4), 4)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    steps = [LOCAL_STEP, StepTime(2, 8, 0, 4.25)]
    path = tmp_path / "table.json"
    path.write_text(json.dumps(document(steps, "measured", "a test", Experts(read_ms=0.1))))
    table = read(path)
    assert (table.source, table.local_ms(8, 0), table.spread_ms(2, 8, 0, 16)) == (
        "measured", 5.5, 4.25,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", '{"kind": "spread-steps"}',
        json.dumps({"kind": "spread-steps", "source": "guessed", "experts": [], "steps": []}),
        json.dumps(document([LOCAL_STEP], "measured", "", Experts())),
        json.dumps(document([LOCAL_STEP, StepTime(2, 8, 0, 0)], "measured", "", Experts())),
        json.dumps(document([*LOCAL_STEPS, StepTime(2, 8, 1, 5)], "measured", "", Experts())),
        json.dumps(document([LOCAL_STEP, *SPREAD_STEPS], "measured", "", Experts())),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused_by_the_name_of_the_setting(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="spread_table: "):
        read(path)
    with pytest.raises(ValueError, match="spread_table: "):
        read(tmp_path / "missing.json")
