"""An engine of four layers of the real widths whose sequences keep states, and what tests of it do
with them."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.batch import Binding, ForwardBatch, Row, Sampled
from engine.config import EngineConfig
from engine.runner import Engine
from tests.gpu.teacher_forced import VOCAB, four_layers
from tests.kernels.closeness import relative_error
from transport.wire.sampling import SamplingParams, StopRule

NUM_SLOTS, NUM_PAGES = 24, 640
GREEDY = SamplingParams(temperature=0.0)
KEPT = 20
"""The first state slot that keeps."""
LAYER_BOUND, STATES_BOUND, LOGITS_BOUND = 0.05, 0.5, 0.25
"""Of relative errors by rounding: of the first layer's state, of all layers', of logits."""


def load(folder: Path) -> Engine:
    (folder / "config.json").write_text(json.dumps(four_layers()))
    settings = EngineConfig(
        folder, NUM_PAGES, NUM_SLOTS, load_format="dummy", device="cuda", poison=True
    )
    found = Engine.load(settings, lambda n: torch.zeros(n, dtype=torch.uint8, device="cuda"))
    assert found._prefill_graphs is not None
    return found


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(VOCAB) for _ in range(length))


def table(slot: int) -> tuple[int, ...]:
    """The pages of a state slot's sequence; the last slot has the last ones."""
    each = NUM_PAGES // 8
    return tuple(range(slot * each, (slot + 1) * each))


def launch(engine: Engine, *rows: Row) -> Sequence[tuple[Sampled, ...]]:
    """Rows of sequences that begin here are bound first."""
    for row in rows:
        if row.start == 0:
            bind(engine, row.state_slot)
    sampled = engine.launch(ForwardBatch(rows)).result().sampled
    torch.cuda.synchronize()
    return sampled


def bind(engine: Engine, slot: int) -> None:
    engine.bind(Binding(slot, (1,), (), GREEDY, StopRule(1 << 20)))


def states(engine: Engine, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    return engine.cache.conv[slot].clone(), engine.cache.recurrent[slot].clone()


def same(found: Sequence[torch.Tensor], truth: Sequence[torch.Tensor], *, exact: bool) -> None:
    for ours, theirs in zip(found, truth, strict=True):
        assert torch.isfinite(ours.float()).all()
        if exact:
            assert torch.equal(ours[0], theirs[0])
        assert relative_error(ours[0], theirs[0]) < LAYER_BOUND
        assert relative_error(ours, theirs) < STATES_BOUND
