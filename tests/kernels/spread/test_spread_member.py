"""What a member of bench.spread_step measures, in a group of its own."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from bench.spread import member as spread_member
from bench.spread.engine import ACCEPTED
from bench.spread.member import Member
from engine import cuda_parts
from engine.config import EngineConfig
from engine.graphs import draft_graphs
from engine.kernels.triton_dot import INTERPRETED
from engine.runner import Engine
from engine.spread.shapes import draft_shapes
from tests.kernels.sets import cuda_path
from tests.kernels.sets.test_cuda_path_spread import on_the_cpu
from tests.kernels.sets.test_cuda_path_spread_drafts import Graph
from tests.kernels.spread.spread_group import Memory

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter"),
    pytest.mark.timeout(400),
]
LIVE = 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(draft_graphs, "_captured", Graph)
    # A lender has all shapes otherwise, up to those of 256 tokens, and none is used here.
    monkeypatch.setattr(cuda_parts, "draft_shapes", lambda most, _=LIVE: draft_shapes(most, LIVE))
    cuda_path.widen_tiles(monkeypatch)
    cuda_path.write_config(tmp_path, hidden_size=256, vocab_size=1024)
    return tmp_path


@pytest.fixture
def member(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Member]:
    """What makes a member in a group of its own, with so many drafts."""

    def load(_: int, folder: Path, buckets: Sequence[int], max_drafts: int, *__: int) -> Engine:
        settings = EngineConfig(
            folder, 2 * LIVE, LIVE, load_format="dummy", dtype="bfloat16", spread=True,
            any_role=True, max_drafts=max_drafts,
            draft_acceptance=ACCEPTED if max_drafts else None, decode_buckets=tuple(buckets),
            group_sizes=(2,),
        )  # fmt: skip
        return cuda_path.load(settings)

    def make(max_drafts: int) -> Member:
        made = Member(0, folder, (LIVE,), max_drafts, 2, 0, 1.0)
        made.join(3, 0, [made.loaded["handle"]], 0)
        return made

    monkeypatch.setattr(spread_member, "load", load)
    monkeypatch.setattr(spread_member, "pages_each", lambda _: 2)
    return make


@pytest.mark.parametrize(("max_drafts", "num_drafts"), [(0, [0, 0]), (3, [0, 3, 2])])
def test_spread_steps_are_equal_to_local_ones_of_the_same_prompts_alone(
    member: Callable[[int], Member], max_drafts: int, num_drafts: list[int]
) -> None:
    made = member(max_drafts)
    asked = made.commands
    assert asked["truth"](LIVE, num_drafts) == {}
    found = asked["bits"](LIVE, LIVE, num_drafts)
    assert found["equal"]
    assert found["same_tokens"]
    assert found["finite"]
    assert (found["num_accepted"] > 0) == (max_drafts > 0)


def test_spread_steps_of_other_prompts_are_not_equal_to_local_ones(
    member: Callable[[int], Member],
) -> None:
    made = member(0)
    asked = made.commands
    asked["truth"](LIVE, [0])
    made._engine.place = 1  # whose prompts are other ones
    found = asked["bits"](LIVE, LIVE, [0])
    assert not found["equal"]
    assert not found["same_tokens"]


def test_timed_steps_are_read_one_behind_the_other(
    member: Callable[[int], Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step_ms(launch: Callable[[int], None], steps: int) -> float:
        for i in range(steps):
            launch(i)
        return 1.5

    monkeypatch.setattr(spread_member, "step_ms", step_ms)
    monkeypatch.setattr(spread_member, "WARM_STEPS", 0)
    made = member(0)
    spread = made.time("spread", LIVE, LIVE, 0, 2)
    assert spread == {"ms": 1.5, "waited_us": {"rows": [0.0], "results": [0.0]}}
    assert made.time("local", LIVE, LIVE, 0, 2) == spread
    assert made.time("local", 0, LIVE, 0, 2) == spread, "a member without sequences"


def test_the_last_member_of_a_group_with_a_lender_lends(
    member: Callable[[int], Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread_member, "WARM_STEPS", 1)
    made = member(0)
    others = Memory(torch.device("cpu"))
    others.allocate(made._engine.spread.export.size_bytes).zero_()
    made.join(4, 1, [others.handle, made.loaded["handle"]], 1)
    assert made.lend(lends=True, live=LIVE, steps=1) == {"came": 0}, "the other one does not launch"
