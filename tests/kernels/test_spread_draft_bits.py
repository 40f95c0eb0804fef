"""What a member of bench.spread_step finds of steps with drafts, in a group of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.spread_draft_bits import DraftBits
from bench.spread_draft_engine import ACCEPTED, MAX_DRAFTS, DraftEngine
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
def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DraftEngine]:
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(draft_graphs, "_captured", Graph)
    cuda_path.widen_tiles(monkeypatch)
    cuda_path.write_config(tmp_path, hidden_size=256, vocab_size=1024)
    settings = EngineConfig(
        tmp_path, PAGES_EACH * LIVE, LIVE, load_format="dummy", dtype="bfloat16", spread=True,
        max_drafts=MAX_DRAFTS, draft_acceptance=ACCEPTED, decode_buckets=(LIVE,),
        group_sizes=(2,),
    )  # fmt: skip
    member = DraftEngine(cuda_path.load(settings), 1, PAGES_EACH, limit_s=1.0)
    member.join(3, 0, [member.handle])
    yield member
    member.spread.leave()


def test_spread_steps_are_equal_to_local_ones_of_the_same_prompts_alone(
    member: DraftEngine,
) -> None:
    bits = DraftBits(member)
    assert bits.truth(LIVE, [0, 3, 2]) == {}
    found = bits.bits(LIVE, LIVE, [0, 3, 2])
    assert found["equal"]
    assert found["same_tokens"]
    assert found["finite"]
    assert found["num_accepted"] > 0
    member.place = 1  # whose prompts are other ones
    found = bits.bits(LIVE, LIVE, [0, 3, 2])
    assert not found["equal"]
    assert not found["same_tokens"]
