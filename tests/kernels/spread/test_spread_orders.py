"""Members of a spread group that run ahead of one another as far as they can: no order of their
kernels may let one overwrite what another has still to read."""

from dataclasses import dataclass, field
from random import Random

import pytest
import torch

from engine.spread.memory import EMPTY, HEADER_BYTES, WORD_BYTES, first_flag
from engine.spread.triton_collect import Collected
from tests.kernels.spread.spread_group import Group, Member
from transport.wire.spread import MAX_MEMBERS

NUM_LAYERS, NUM_STEPS = 2, 2
KERNELS = ("push", "collect", "experts", "take up")


@dataclass
class Progress:
    """Of one member: the kernels that it has run, and what its layers gave."""

    inputs: list[Member]
    truth: list[tuple[torch.Tensor, torch.Tensor]]
    num_run: int = 0
    rows: Collected | None = None
    found: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def use(self) -> int:
        return self.num_run // len(KERNELS)

    @property
    def kernel(self) -> str:
        return KERNELS[self.num_run % len(KERNELS)]

    @property
    def member(self) -> Member:
        return self.inputs[self.use]

    @property
    def done(self) -> bool:
        return self.num_run == len(self.inputs) * len(KERNELS)


def flag_of(use: int) -> int:
    return first_flag(1, 5 + use // NUM_LAYERS, NUM_LAYERS) + use % NUM_LAYERS


def rows_are_there(group: Group, member: Member, use: int) -> bool:
    """Whether no word of the rows of all members is missing in the inbox."""
    layout, flag = group.layout, flag_of(use)
    inbox = member.memory[layout.lane(1) + HEADER_BYTES :][: 2 * MAX_MEMBERS * layout.member_bytes]
    here = inbox.view(torch.int32).view(2, MAX_MEMBERS, -1, 4)[flag & 1, : len(group.members)]
    parts = [layout.weights_offset, layout.x_offset - layout.weights_offset]
    parts += [layout.member_bytes - layout.x_offset]
    num_rows, valid = group.rows_each, []
    for words in here.split([part // WORD_BYTES for part in parts], dim=1):
        rows = words.view(len(here), layout.max_rows, -1, 4)[:, :num_rows]
        valid.append((rows[..., 1].eq(flag) & rows[..., 3].eq(flag)).all(-1))
    ids = here[:, : layout.max_rows * layout.id_words].view(len(here), layout.max_rows, -1, 4)
    padding = ids[:, :num_rows, 0, 0].bitwise_and(0xFFFF).eq(0xFFFF)
    has_ids, has_weights, has_x = valid
    return bool((has_ids & (padding | (has_weights & has_x))).all())


def can_run(group: Group, each: Progress) -> bool:
    """Whether a member's next kernel ends without waiting."""
    if each.kernel == "collect":
        return rows_are_there(group, each.member, each.use)
    if each.kernel == "take up":
        live = int(each.member.num_live)
        return not each.member.exchange.returned[:live].eq(EMPTY).any()
    return True


def run_next(group: Group, each: Progress) -> None:
    member, layer = each.member, each.use % NUM_LAYERS
    if each.kernel == "push":
        if layer == 0:
            member.exchange.begin_step(flag_of(each.use))
        group.push(member, layer)
    elif each.kernel == "collect":
        each.rows = group.collect(member, layer)
    elif each.kernel == "experts":
        assert each.rows is not None
        group.experts(member, each.rows)
    else:
        assert each.rows is not None
        each.found.append(group.take_up(member, each.rows))
    each.num_run += 1


@pytest.mark.parametrize(
    ("order", "lives"),
    [
        ("random", [2, 1, 0]),
        ("first as far ahead as it can", [2, 1, 0]),
        ("first as far ahead as it can", [3, 3]),
        ("last behind", [2, 1, 0]),
    ],
    ids=str,
)
def test_every_order_of_the_members_gives_the_bits_of_the_local_step(
    device: torch.device, order: str, lives: list[int]
) -> None:
    group = Group(device, lives, 3)
    inputs: list[list[Member]] = [[] for _ in lives]
    for _ in range(NUM_STEPS * NUM_LAYERS):
        for member, uses in zip(group.members, inputs, strict=True):
            uses.append(member)
        group.draw_layer()
    progress = [Progress(uses, [group.local(member) for member in uses]) for uses in inputs]
    chooses = Random(0)
    while not all(each.done for each in progress):
        ready = [each for each in progress if not each.done and can_run(group, each)]
        assert ready, "the members wait for one another"
        chosen = chooses.choice(ready)
        if order != "random":
            chosen = ready[0]
        if order == "last behind":
            chosen = min(ready, key=lambda each: (each is progress[-1], each.num_run))
        run_next(group, chosen)
    for each in progress:
        assert each.inputs[0].header == [0] * 4
        for found, expected in zip(each.found, each.truth, strict=True):
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1])
