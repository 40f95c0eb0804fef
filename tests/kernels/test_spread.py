"""The kernels of a spread step, the members of a group on one device one after another, against
the local step's kernels, bit for bit."""

from dataclasses import dataclass, replace

import pytest
import torch

from engine.kernels.triton_add_norm import add_rms_norm
from engine.kernels.triton_experts import Tiles
from engine.kernels.triton_experts import experts as local_experts
from engine.model.matrix import Matrix
from engine.spread.memory import EMPTY, HEADER_BYTES, UNKNOWN_MEMBER, Exchange, ExchangeLayout
from engine.spread.triton_collect import Collected, collect
from engine.spread.triton_experts import experts
from engine.spread.triton_push import push
from engine.spread.triton_take_up import Returned, take_up

NUM_EXPERTS, TOP_K, HIDDEN, DIM, MAX_ROWS = 12, 4, 64, 32, 24
TILES = Tiles(16, 32, 2, 4), Tiles(32, 16, 2, 4)
EPS = 1e-6


@dataclass
class Member:
    """Its memory, and what it feeds to a layer."""

    memory: torch.Tensor
    exchange: Exchange
    hidden: torch.Tensor
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    shared: torch.Tensor
    num_live: torch.Tensor

    @property
    def header(self) -> list[int]:
        return self.exchange.header[:4].tolist()


class Group:
    """Members with ``lives`` rows each, all in the bucket ``rows_each``."""

    def __init__(self, device: torch.device, lives: list[int], rows_each: int) -> None:
        self.device, self.rows_each = device, rows_each
        self.layout = ExchangeLayout(MAX_ROWS, TOP_K, HIDDEN)
        self.gate_up = Matrix.of(self._draw(NUM_EXPERTS, 2 * DIM, HIDDEN))
        self.down = Matrix.of(self._draw(NUM_EXPERTS, HIDDEN, DIM))
        self.shared_down = Matrix.of(self._draw(HIDDEN, DIM))
        self.norm = 1 + self._draw(HIDDEN).float()
        self.members = [self._member(live) for live in lives]
        self.form(1)

    def form(self, generation: int) -> None:
        addresses = [member.memory.data_ptr() for member in self.members]
        for place, member in enumerate(self.members):
            member.exchange.join(generation, addresses, place, limit_s=1.0)

    def draw_layer(self) -> None:
        """Other rows for every member."""
        self.members = [
            replace(
                self._member(int(member.num_live)), exchange=member.exchange, memory=member.memory
            )
            for member in self.members
        ]

    def local(self, member: Member) -> tuple[torch.Tensor, torch.Tensor]:
        """What the local step makes of a member's live rows: (hidden, its norm)."""
        n = int(member.num_live)
        y = local_experts(
            member.x, member.ids, member.weights, self.gate_up, self.down,
            (member.shared, self.shared_down), TILES,
        )  # fmt: skip
        hidden, x = add_rms_norm(member.hidden.clone(), y, self.norm, EPS)
        return hidden[:n], x[:n]

    def begin_step(self, flag: int) -> None:
        for member in self.members:
            member.exchange.begin_step(flag)

    def push(self, member: Member, layer: int) -> None:
        push(member.x, member.ids, member.weights, member.exchange, len(self.members), layer)

    def collect(self, member: Member, layer: int) -> Collected:
        num = len(self.members)
        return collect(member.exchange, num, self.rows_each, NUM_EXPERTS, layer, member.x.dtype)

    def experts(self, member: Member, rows: Collected) -> None:
        experts(
            rows, member.shared, self.gate_up, self.down, self.shared_down, member.exchange,
            len(self.members), TILES,
        )  # fmt: skip

    def take_up(self, member: Member) -> tuple[torch.Tensor, torch.Tensor]:
        returned = Returned(member.exchange, len(self.members), self.rows_each, member.num_live)
        hidden, x = take_up(member.hidden.clone(), returned, self.norm, EPS)
        n = int(member.num_live)
        return hidden[:n], x[:n]

    def layer(self, layer: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        for member in self.members:
            self.push(member, layer)
        for member in self.members:
            self.experts(member, self.collect(member, layer))
        return [self.take_up(member) for member in self.members]

    def _member(self, live: int) -> Member:
        n = self.rows_each
        memory = aligned(self.layout.size_bytes, self.device)
        ids = torch.rand(n, NUM_EXPERTS).argsort(1)[:, :TOP_K].int()
        ids[live:] = -1
        return Member(
            memory,
            Exchange(self.layout, memory),
            self._draw(n, HIDDEN),
            self._draw(n, HIDDEN),
            ids.to(self.device),
            torch.rand(n, TOP_K).to(self.device),
            self._draw(n, DIM),
            torch.tensor([live], dtype=torch.int32, device=self.device),
        )

    def _draw(self, *shape: int) -> torch.Tensor:
        return (torch.randn(shape) * shape[-1] ** -0.25).to(self.device, torch.bfloat16)


def aligned(size_bytes: int, device: torch.device) -> torch.Tensor:
    memory = torch.empty(size_bytes + HEADER_BYTES, dtype=torch.uint8, device=device)
    return memory[-memory.data_ptr() % HEADER_BYTES :][:size_bytes]


@pytest.mark.parametrize(
    ("lives", "rows_each"),
    [([1], 1), ([3, 3], 3), ([5, 2], 8), ([0, 4, 1], 4), ([0, 0], 2), ([9, 20], 20)],
    ids=str,
)
def test_a_spread_layer_has_the_bits_of_the_local_one(
    device: torch.device, lives: list[int], rows_each: int
) -> None:
    group = Group(device, lives, rows_each)
    flag = 1
    for _ in range(2):
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


def test_rows_that_do_not_come_abort_the_generation_and_name_the_member(
    device: torch.device,
) -> None:
    group = Group(device, [2, 2, 2], 2)
    group.begin_step(1)
    first, second, _ = group.members
    group.push(first, 0)
    group.push(second, 0)
    rows = group.collect(first, 0)
    assert rows.counts.eq(0).all(), "experts of rows that are not all there are not computed"
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
    group.experts(first, group.collect(first, 0))
    hidden = first.hidden.clone()
    group.take_up(first)
    assert [member.header[0] for member in group.members] == [UNKNOWN_MEMBER] * 2
    group.experts(second, group.collect(second, 0))
    assert first.exchange.returned[:2].eq(EMPTY).any(), "nothing comes later"
    assert torch.equal(first.hidden, hidden)


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
    assert group.collect(group.members[0], 0).counts.eq(0).all()
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
    push(left.x, left.ids, left.weights, old, 3, 0)
    experts(late, shared, group.gate_up, group.down, group.shared_down, old, 3, TILES)
    for member, rows in zip(group.members, collected, strict=True):
        group.experts(member, rows)
    for member, expected in zip(group.members, truth, strict=True):
        found = group.take_up(member)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
