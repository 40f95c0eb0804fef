"""On a real GPU: no room, bad numbers, and a checkpoint's bytes where they belong."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig
from engine.errors import CheckpointError, GpuMemoryHeld
from engine.loading import checkpoint, weights
from engine.model.registry import build, read_config
from engine.runner import Engine
from tests.engine.checkpoints import checkpoint as some_checkpoint
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = pytest.mark.gpu

TINY = Path(__file__).parents[2] / "models/tiny"


def on_gpu(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


def test_a_full_gpu_is_refused_with_the_numbers() -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    taken = on_gpu(free - (4 << 30))
    config = EngineConfig(TINY, num_pages=8, num_state_slots=2, device="cuda")
    with pytest.raises(GpuMemoryHeld, match=r"GiB of .* GiB free, the model needs"):
        Engine.load(config, on_gpu)
    del taken
    torch.cuda.empty_cache()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_arrive_whole(dtype: str) -> None:
    """Straight, cast, transposed and in parts: the GPU's weights are the CPU's."""
    for folder in (TINY, some_checkpoint("per_expert")):
        config = read_config(folder)
        models = []
        for device in ("cpu", "cuda"):
            model = build(config, getattr(torch, dtype), torch.device(device))
            entries = checkpoint.read_entries(folder, mtp=config.num_mtp_layers > 0)
            weights.load(model.plan, entries)
            models.append(model)
        theirs, ours = (model.plan.targets for model in models)
        for name, target in ours.items():
            assert torch.equal(target.into.cpu(), theirs[name].into), name


def test_a_file_that_ends_early_is_named(tmp_path: Path) -> None:
    tensors = load_file(TINY / "model.safetensors")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((TINY / "config.json").read_bytes())
    entries = checkpoint.read_entries(tmp_path, mtp=True)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(max(entry.offset + entry.num_bytes for entry in entries) - 1)
    model = build(read_config(tmp_path), torch.bfloat16, torch.device("cuda"))
    with pytest.raises(CheckpointError, match=r"cannot read .* ends 1 bytes early"):
        weights.load(model.plan, entries)


def test_nan_ends_its_own_row_alone() -> None:
    config = EngineConfig(TINY, num_pages=8, num_state_slots=2, device="cuda")
    engine = Engine.load(config, on_gpu)
    for slot in (0, 1):
        greedy = SamplingParams(temperature=0.0)
        engine.bind(Binding(slot, (5, 6, 7), (), greedy, StopRule(100)))
    prompts = [Row(slot, (slot,), 0, (5, 6, 7)) for slot in (0, 1)]
    assert all(
        s.token_id is not None
        for (s,) in engine.launch(ForwardBatch(tuple(prompts))).result().sampled
    )
    engine.poison_slot(1)
    rows = tuple(Row(slot, (slot,), 3, None) for slot in (0, 1))
    ((good,), (bad,)) = engine.launch(ForwardBatch(rows)).result().sampled
    assert good.token_id is not None
    assert bad.token_id is None
