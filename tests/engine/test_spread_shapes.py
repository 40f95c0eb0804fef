"""Which graphs there are for spread steps, and which of them a step takes."""

from hypothesis import given
from hypothesis import strategies as st

from engine.spread.shapes import draft_shapes, fits, group_size, shape_for, sizes_on
from transport.wire.spread import MAX_MEMBERS, MAX_ROWS


@given(st.integers(0, 4), st.integers(1, 300), st.integers(0, 300), st.integers(0, 4))
def test_a_step_takes_the_smallest_shape_with_as_many_drafts_as_can_be(
    max_drafts: int, num_slots: int, rows: int, drafts: int
) -> None:
    shapes = draft_shapes(max_drafts, num_slots)
    assert set(shapes) <= set(draft_shapes(max_drafts)), "a lender has all"
    assert max(shape.num_tokens for shape in shapes) <= MAX_ROWS
    rows = min(rows, num_slots)
    assert fits(shapes, rows) == (rows <= MAX_ROWS)
    if not fits(shapes, rows):
        return
    taken = shape_for(shapes, rows, drafts)
    assert taken in shapes
    assert taken.bucket >= rows
    wanted = min(drafts, max_drafts)
    assert taken.num_drafts <= wanted
    if rows <= MAX_ROWS // (1 + wanted):
        assert taken.num_drafts == wanted
    for other in shapes:
        if other.num_drafts == taken.num_drafts and other.bucket >= rows:
            assert other.bucket >= taken.bucket


def test_a_node_has_graphs_for_the_groups_that_its_gpus_can_form() -> None:
    for num_gpus in range(2, 12):
        members = range(2, min(num_gpus, MAX_MEMBERS) + 1)
        assert set(sizes_on(num_gpus)) == {group_size(number) for number in members}
