"""The kernels of a spread step, the members of a group on one device one after another, against
the local step's kernels, bit for bit."""

import pytest
import torch

from engine.kernels.experts.triton_route import route_shared
from engine.spread.memory import EMPTY, HEADER_BYTES, TURN, UNKNOWN_MEMBER
from engine.spread.triton_agree import agree, offer
from engine.spread.triton_experts import experts
from engine.spread.triton_push import push
from engine.spread.triton_route_push import route_push
from tests.kernels.spread.spread_group import DIM, NUM_EXPERTS, TILES, TOP_K, Group


@pytest.mark.parametrize(
    ("lives", "rows_each"),
    [
        ([1], 1),
        ([3, 3], 3),
        ([0, 4, 1], 4),
        ([0, 0], 2),
        ([9, 20], 20),
        ([1] * 5, 1),
        ([3, 0, 1, 2, 3, 0, 2, 1], 3),
    ],
    ids=str,
)
def test_a_spread_layer_has_the_bits_of_the_local_one(
    device: torch.device, lives: list[int], rows_each: int
) -> None:
    """In two steps, and in one of the larger groups, whose third layer uses the inbox of the first
    again too."""
    group = Group(device, lives, rows_each)
    flag = 1
    for _ in range(2 if len(lives) < 5 else 1):
        group.begin_step(flag)
        for layer in range(3):
            group.draw_layer()
            truth = [group.local(member) for member in group.members]
            for found, expected in zip(group.layer(layer), truth, strict=True):
                assert torch.equal(found[0], expected[0])
                assert torch.equal(found[1], expected[1])
        flag += 3
    for member in group.members:
        assert member.header == [0] * 4
        returned, live = member.exchange.returned, int(member.num_live)
        assert returned[:live].eq(EMPTY).all(), "a value that was read is emptied"
        assert returned[live:, :TOP_K].eq(EMPTY).all(), "padding has no results"


@pytest.mark.parametrize("lenders", [[], [0]], ids=str)
def test_routing_and_pushing_in_one_launch_gives_what_two_give(
    device: torch.device, lenders: list[int]
) -> None:
    group = Group(device, [5, 2], 6, len(lenders))
    member, layer = group.members[0], 1
    group.begin_step(3, lenders)
    projected = torch.randn(2, 6, 2 * DIM + NUM_EXPERTS + 1, device=device)
    live = torch.tensor([0, 7, -1, 3, 4, -1], dtype=torch.int32, device=device)
    ids, weights, shared = route_shared(projected, NUM_EXPERTS, TOP_K, torch.bfloat16, live)
    everyone = [*group.members, *group.lenders]
    found = []
    for fused in (False, True):
        for each in everyone:
            each.memory[group.layout.lane(1) + HEADER_BYTES :].fill_(0x77)
        owned = torch.full((600,), 7, dtype=torch.int32, device=device)
        if fused:
            args = projected, NUM_EXPERTS, live, member.exchange, layer, owned
            fused_ids, fused_shared = route_push(member.x, *args)
            assert torch.equal(fused_ids, ids)
            assert torch.equal(fused_shared, shared)
        else:
            push(member.x, ids, weights, member.exchange, layer, owned)
        assert owned.eq(0).all(), "until it is known who owns what"
        found.append([each.memory.clone() for each in everyone])
    for pushed, routed in zip(*found, strict=True):
        assert torch.equal(pushed, routed)


def test_padding_may_stand_between_rows(device: torch.device) -> None:
    """As where a sequence has fewer drafts than another one."""
    group = Group(device, [6, 4], 6)
    first = group.members[0]
    first.ids[1] = first.ids[4] = -1
    group.begin_step(1)
    truth = [group.local(member) for member in group.members]
    found = group.layer(0)
    rows = [0, 2, 3, 5]
    for ours, expected in zip(found[0], truth[0], strict=True):
        assert torch.equal(ours[rows], expected[rows])
    assert torch.equal(found[1][0], truth[1][0])
    assert all(member.header == [0] * 4 for member in group.members)
    assert first.exchange.returned[[1, 4], :TOP_K].eq(EMPTY).all()


@pytest.mark.parametrize(
    ("lives", "rows_each", "taking_part"),
    [
        ([3], 3, ([0], [], [0])), ([2, 5], 5, ([0, 1], [1], [0])), ([0, 4, 1], 4, ([], [1], [0])),
        ([1, 2, 0, 2], 2, ([0, 1, 2, 3], [1, 3], [])), ([0, 0], 2, ([0, 1], [0])),
    ],
    ids=str,
)  # fmt: skip
def test_lenders_that_come_and_go_change_no_bit(
    device: torch.device, lives: list[int], rows_each: int, taking_part: tuple[list[int], ...]
) -> None:
    num_lenders = 1 + max(max(lenders, default=0) for lenders in taking_part)
    group = Group(device, lives, rows_each, num_lenders)
    flag = 1
    for lenders in taking_part:
        group.begin_step(flag, lenders)
        for i, lender in enumerate(group.lenders):
            turn = len(lives) + lenders.index(i) if i in lenders else -1
            assert int(lender.exchange.control[TURN]) == turn
        for layer in range(2):
            group.draw_layer()
            truth = [group.local(member) for member in group.members]
            for found, expected in zip(group.layer(layer), truth, strict=True):
                assert torch.equal(found[0], expected[0])
                assert torch.equal(found[1], expected[1])
        flag += 2
    for member in [*group.members, *group.lenders]:
        assert member.header == [0] * 4


def test_the_experts_are_shared_out_among_decoding_members_and_lenders(
    device: torch.device,
) -> None:
    group = Group(device, [4, 3], 4, 2)
    group.begin_step(1, [1])
    everyone = [*group.members, *group.lenders]
    for member in everyone:
        group.push(member, 0)
    collected = [group.collect(each, 0) for each in everyone]
    for member, rows in zip(everyone, collected, strict=True):
        group.experts(member, rows)
    first, second, late, third = collected
    assert late.owned.eq(0).all(), "it came too late"
    chosen = torch.cat([member.ids[: int(member.num_live)] for member in group.members])
    counts = chosen.flatten().bincount(minlength=NUM_EXPERTS)
    active = counts.nonzero().flatten()
    for turn, rows in enumerate((first, second, third)):
        owned = active[turn::3]
        assert torch.equal(rows.owned[: len(owned)], (counts[owned] * 65536 + owned).int())
        assert rows.owned[len(owned) :].eq(0).all()
        assert torch.equal(rows.owners[active], torch.arange(len(active), device=device).int() % 3)


def test_a_lender_that_goes_on_with_an_old_step_takes_no_part(device: torch.device) -> None:
    group = Group(device, [2], 2, 1)
    for flag in (1, 3):
        group.begin_step(flag)
    (lender,) = group.lenders
    lender.exchange.begin_step(1)
    offer(lender.exchange)
    agree(lender.exchange)
    assert int(lender.exchange.control[TURN]) == -1
    before = group.members[0].memory.clone()
    group.push(lender, 0)
    group.experts(lender, group.collect(lender, 0))
    assert torch.equal(group.members[0].memory, before)


def test_a_lender_that_does_not_go_on_aborts_the_step_and_is_named(device: torch.device) -> None:
    group = Group(device, [2, 2], 2, 1)
    group.begin_step(1, [0])
    for member in group.members:
        group.push(member, 0)
    group.collect(group.members[0], 0)
    assert group.members[0].header == [2 + 2, 0, 0, 1]
    assert group.lenders[0].header[0] == 2 + 2, "it is told, should it go on"


def test_rows_that_do_not_come_abort_the_generation_and_name_the_member(
    device: torch.device,
) -> None:
    group = Group(device, [2, 2, 2], 2)
    group.begin_step(1)
    first, second, _ = group.members
    group.push(first, 0)
    group.push(second, 0)
    rows = group.collect(first, 0)
    assert rows.owned.eq(0).all(), "experts of rows that are not all there are not computed"
    third = 2
    assert first.header == [2 + third, 0, 0, 1]
    assert [member.header[0] for member in group.members] == [2 + third] * 3
    assert second.header[1:] == [0] * 3, "only who has waited knows for whom"


def test_an_aborted_member_stores_nothing_at_others(device: torch.device) -> None:
    group = Group(device, [2, 2], 2)
    group.begin_step(1)
    for member in group.members:
        group.push(member, 0)
    first, second = group.members
    rows = group.collect(first, 0)
    first.exchange.header[0] = UNKNOWN_MEMBER
    before = second.memory.clone()
    group.experts(first, rows)
    group.push(first, 1)
    assert torch.equal(second.memory, before)


def test_a_result_that_does_not_come_aborts_the_generation(device: torch.device) -> None:
    group = Group(device, [2, 2], 2)
    group.begin_step(1)
    for member in group.members:
        group.push(member, 0)
    first, second = group.members
    rows = group.collect(first, 0)
    group.experts(first, rows)
    hidden = first.hidden.clone()
    group.take_up(first, rows)
    assert [member.header[0] for member in group.members] == [UNKNOWN_MEMBER] * 2
    group.experts(second, group.collect(second, 0))
    assert first.exchange.returned[:2].eq(EMPTY).any(), "nothing comes later"
    assert torch.equal(first.hidden, hidden)


def test_each_layer_counts_how_long_each_members_rows_were_waited_for(
    device: torch.device,
) -> None:
    group = Group(device, [2, 0, 3], 3, 2)
    group.begin_step(1, [1])
    for layer in range(2):
        group.layer(layer)
    for place, member in enumerate(group.members):
        rows, results = member.exchange.waited.tolist()
        if device.type == "cpu":  # a wait is 1 ns, and the first member tells the others who lends
            assert rows == [2 + (place > 0), 2, 2, 0, 2, 0, 0, 0]
        assert all(rows[i] > 0 for i in (0, 1, 2, 4))
        assert not any(results), "no kernel ran before what it reads was there"
    assert not group.lenders[0].exchange.waited.any(), "it came too late"


@pytest.mark.parametrize("missing", [1, 3])
def test_a_wait_for_results_counts_for_the_member_whose_were_the_last(
    device: torch.device, missing: int
) -> None:
    group = Group(device, [2, 2], 2, 2)
    members = [*group.members, *group.lenders]
    members[0].ids[:] = torch.arange(TOP_K, dtype=torch.int32)
    group.begin_step(1, [1])
    for member in members:
        group.push(member, 0)
    collected = [group.collect(member, 0) for member in members]
    for place, (member, rows) in enumerate(zip(members, collected, strict=True)):
        if place != missing:
            group.experts(member, rows)
    group.take_up(members[0], collected[0])
    waited = members[0].exchange.waited[1].tolist()
    assert [place for place, ns in enumerate(waited) if ns] == [missing]


def test_an_aborted_generation_computes_no_further_step(device: torch.device) -> None:
    group = Group(device, [2, 2], 2)
    group.begin_step(1)
    for member in group.members:
        member.exchange.header[0] = UNKNOWN_MEMBER
    group.layer(0)
    assert [member.header[0] for member in group.members] == [UNKNOWN_MEMBER] * 2


def test_rows_of_an_older_use_are_not_taken(device: torch.device) -> None:
    group = Group(device, [2, 2], 2)
    for flag in (1, 3):
        group.begin_step(flag)
        group.push(group.members[0], 0)
    group.begin_step(1)
    group.push(group.members[1], 0)
    group.begin_step(3)
    assert group.collect(group.members[0], 0).owned.eq(0).all()
    assert group.members[0].header[0] == 2 + 1


def test_a_member_left_behind_does_not_reach_the_next_generation(device: torch.device) -> None:
    group = Group(device, [3, 3, 1], 3)
    *_, left = group.members
    group.begin_step(1)
    for member in group.members:
        group.push(member, 0)
    late = group.collect(left, 0)
    group.members = group.members[:2]
    group.form(2)
    group.begin_step(1)
    truth = [group.local(member) for member in group.members]
    for member in group.members:
        group.push(member, 0)
    collected = [group.collect(member, 0) for member in group.members]
    # The member's kernels run on, with its addresses of the generation before.
    old, shared = left.exchange, left.shared
    push(left.x, left.ids, left.weights, old, 0, group.no_rows(left).owned)
    experts(late, group.gate_up, group.down, (shared, group.shared_down), old, TILES)
    for member, rows in zip(group.members, collected, strict=True):
        group.experts(member, rows)
    for member, rows, expected in zip(group.members, collected, truth, strict=True):
        found = group.take_up(member, rows)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
