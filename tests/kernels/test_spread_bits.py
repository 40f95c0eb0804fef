"""The bits that a member of bench.spread_step compares, in a group of its own."""

from pathlib import Path

import pytest

from bench.spread.bits import Bits
from bench.spread.engine import ACCEPTED, MemberEngine
from engine import draft_graphs
from engine.config import EngineConfig
from engine.kernels.triton_dot import INTERPRETED
from tests.kernels import cuda_path
from tests.kernels.test_cuda_path_spread import on_the_cpu
from tests.kernels.test_cuda_path_spread_drafts import Graph

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter"),
    pytest.mark.timeout(400),
]
PAGES_EACH, LIVE = 2, 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(draft_graphs, "_captured", Graph)
    cuda_path.widen_tiles(monkeypatch)
    cuda_path.write_config(tmp_path, hidden_size=256, vocab_size=1024)
    return tmp_path


def joined(folder: Path, max_drafts: int) -> MemberEngine:
    settings = EngineConfig(
        folder, PAGES_EACH * LIVE, LIVE, load_format="dummy", dtype="bfloat16", spread=True,
        any_role=True, max_drafts=max_drafts, draft_acceptance=ACCEPTED if max_drafts else None,
        decode_buckets=(LIVE,), group_sizes=(2,),
    )  # fmt: skip
    member = MemberEngine(cuda_path.load(settings), PAGES_EACH, limit_s=1.0)
    member.join(3, 0, [member.handle], 0)
    return member


@pytest.mark.parametrize(("max_drafts", "num_drafts"), [(0, [0, 0]), (3, [0, 3, 2])])
def test_spread_steps_are_equal_to_local_ones_of_the_same_prompts_alone(
    folder: Path, max_drafts: int, num_drafts: list[int]
) -> None:
    member = joined(folder, max_drafts)
    bits = Bits(member)
    assert bits.truth(LIVE, num_drafts) == {}
    found = bits.bits(LIVE, LIVE, num_drafts)
    assert found["equal"]
    assert found["same_tokens"]
    assert found["finite"]
    assert (found["num_accepted"] > 0) == (max_drafts > 0)
    member.place = 1  # whose prompts are other ones
    found = bits.bits(LIVE, LIVE, num_drafts)
    assert not found["equal"]
    assert not found["same_tokens"]
    member.spread.leave()
