"""An engine that the benchmarks of steps drive, on the CPU."""

from pathlib import Path

import pytest
import torch

from bench.engine_bench import Bench, Run
from engine.config import EngineConfig
from engine.runner import Engine

TINY = Path(__file__).parents[2] / "models" / "tiny"
RUN = Run(3, 70, 2)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    config = EngineConfig(TINY, 6, 3, load_format="dummy")
    return Engine.load(config, lambda size: torch.zeros(size, dtype=torch.uint8))


def test_prompts_are_computed_in_batches_or_in_chunks(engine: Engine) -> None:
    bench = Bench(engine)
    assert bench.prefill(RUN, 140) > 0, "two at a time"
    assert bench.prefill(Run(1, 100, 2), 64) > 0, "one in two chunks"
    assert bench.prefill_s(RUN, 1000, 2) > 0


def test_steps_are_timed(engine: Engine) -> None:
    bench = Bench(engine)
    bench.prefill(RUN, 1000)
    plain = bench.decode(RUN, num_steps=4, num_warm=2)
    assert plain.step_s > 0
    assert 0 < plain.host_s <= plain.step_s
