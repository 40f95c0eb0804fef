"""A lender's steps, whose first member is on the same device and runs before them."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from engine.batch import SpreadPlan
from engine.graphs.graph_pool import GraphPool
from engine.model.weights import MoeWeights
from engine.spread import triton_experts
from engine.spread.group_memory import GroupMemory
from engine.spread.interface import Lent
from engine.spread.lending import LendingSteps
from engine.spread.memory import EMPTY, Exchange, first_flag
from engine.spread.shapes import SpreadShape
from engine.spread.triton_agree import agree, offer
from tests.kernels.sets import cuda_path
from tests.kernels.spread.spread_group import TILES, Group, Memory

NUM_LAYERS, BUCKET, ROUND = 2, 3, 7
PLAN = SpreadPlan(1, ROUND, BUCKET, first=True)


class Pair:
    """A lender and the only member that decodes."""

    def __init__(self, device: torch.device) -> None:
        self.group = group = Group(device, [3], BUCKET)
        (self.first,) = group.members
        mlp = MoeWeights(
            in_proj=group.gate_up, shared_down=group.down, gate_up=group.gate_up, down=group.down,
            top_k=group.layout.top_k,
        )  # fmt: skip
        layers = [SimpleNamespace(mlp=mlp)] * NUM_LAYERS
        model: Any = SimpleNamespace(weights=SimpleNamespace(layers=layers))
        self.steps = LendingSteps(
            model, GroupMemory(group.layout, Memory(device), int, lambda address: None),
            [SpreadShape(BUCKET)], limit_s=1.0,
        )  # fmt: skip
        self.steps.capture(sizes=[2])
        own = self.steps.export
        first = msgspec.structs.replace(own, handle=str(self.first.memory.data_ptr()))
        self.steps.join(1, 1, [first, own], 1)
        addresses = [self.first.memory.data_ptr(), int(own.handle)]
        self.exchange.join(1, addresses, 0, num_lenders=1, limit_s=1.0)

    @property
    def exchange(self) -> Exchange:
        return self.first.exchange

    def begin(self, number: int, *, lends: bool) -> None:
        """The first member's step of this round, up to its first layer."""
        flag = first_flag(1, number, NUM_LAYERS)
        if lends:
            self.steps.exchange.begin_step(flag)
            offer(self.steps.exchange)
        self.exchange.begin_step(flag)
        agree(self.exchange)


@pytest.fixture
def pair(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(triton_experts, "tiles_of", lambda *_: TILES)
    if device.type == "cpu":
        monkeypatch.setattr(GraphPool, "capture", cuda_path.capture)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    return Pair(device)


def test_a_lender_that_comes_too_late_computes_nothing(pair: Pair) -> None:
    pair.begin(ROUND, lends=False)
    assert pair.steps.lend(PLAN).result() == Lent(took_part=False)
    over = SpreadPlan(1, ROUND - 1, BUCKET, first=True)
    assert pair.steps.lend(over).result() == Lent(took_part=False)
    assert pair.exchange.returned.eq(EMPTY).all()
    assert pair.first.header == [0] * 4


def test_a_lender_that_has_waited_in_vain_is_not_counted_on(pair: Pair) -> None:
    assert pair.steps.lend(PLAN).result() == Lent(took_part=False)
    pair.begin(ROUND, lends=False)
    group = pair.group
    truth = group.local(pair.first)
    assert torch.equal(group.layer(0)[0][0], truth[0])


def test_a_lender_computes_its_share_until_a_member_does_not_come(pair: Pair) -> None:
    pair.begin(ROUND, lends=True)
    group = pair.group
    truth = group.local(pair.first)
    group.push(pair.first, 0)
    assert pair.steps.lend(PLAN).result() == Lent(True, True, (0,)), "no rows of the second layer"
    pair.exchange.header.zero_()
    rows = group.collect(pair.first, 0)
    group.experts(pair.first, rows)
    found = group.take_up(pair.first, rows)
    assert torch.equal(found[0], truth[0])
    assert torch.equal(found[1], truth[1])
    pair.begin(ROUND + 1, lends=False)
    behind = SpreadPlan(1, ROUND + 1, BUCKET, first=True)
    assert pair.steps.lend(behind).result() == Lent(took_part=False)
