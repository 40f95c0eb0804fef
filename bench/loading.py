"""``python -m bench.loading``: how fast a checkpoint reaches the GPU from the page cache.

Writes a checkpoint of the real widths and a few layers in shards, as the released one has them,
and loads it twice; the second time its bytes are in the page cache. The speed of reading a mapped
file tensor by tensor is shown beside it.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors import safe_open
from safetensors.torch import save_file

from bench.step import FULL_SIZE, gpu_environment
from engine import checkpoint, weights
from engine.model.config import ModelConfig
from engine.model.registry import build

DEVICE = torch.device("cuda")
SHARD_BYTES = 4 << 30


def main(
    layers: Annotated[int, typer.Option(help="Layers of the checkpoint.")] = 8,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("bench/results/loading.json"),
    commit: Annotated[str, typer.Option(help="Where the code is not a git checkout.")] = "",
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_bytes = write(folder, layers)
        results: dict[str, Any] = {"bytes": num_bytes}
        for run in ("first", "again"):
            seconds = load(folder)
            results[run] = {"s": round(seconds, 2), "gb_per_s": round(num_bytes / seconds / 1e9, 2)}
        seconds = one_by_one(folder)
        results["mapped"] = {
            "s": round(seconds, 2),
            "gb_per_s": round(num_bytes / seconds / 1e9, 2),
        }
    report = {
        "environment": gpu_environment("bench.loading", commit),
        "layers": layers,
        "results": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(results))


def write(folder: Path, layers: int) -> int:
    """A random checkpoint in ``folder``; its size in bytes."""
    settings = json.loads((FULL_SIZE / "config.json").read_text())
    text = settings["text_config"]
    text |= {"num_hidden_layers": layers, "layer_types": text["layer_types"][:layers]}
    (folder / "config.json").write_text(json.dumps(settings))
    plan = build(ModelConfig.read(folder), torch.bfloat16, torch.device("meta")).plan
    shards: list[dict[str, torch.Tensor]] = [{}]
    sizes = [0]
    for name, target in plan.targets.items():
        if sizes[-1] > SHARD_BYTES:
            shards.append({})
            sizes.append(0)
        tensor = torch.empty(target.shape, dtype=torch.bfloat16, device=DEVICE).normal_().cpu()
        shards[-1][f"model.language_model.{name}"] = tensor
        sizes[-1] += tensor.nbytes
    names: dict[str, str] = {}
    for index, shard in enumerate(shards):
        file = f"model-{index:05}.safetensors"
        save_file(shard, folder / file)
        names |= dict.fromkeys(shard, file)
    (folder / checkpoint.INDEX).write_text(json.dumps({"weight_map": names}))
    return sum(sizes)


def load(folder: Path) -> float:
    """Seconds from the folder to weights on the GPU, the model's memory apart."""
    model = build(ModelConfig.read(folder), torch.bfloat16, DEVICE)
    torch.cuda.synchronize()
    began = time.perf_counter()
    weights.load(model.plan, checkpoint.read_entries(folder))
    torch.cuda.synchronize()
    return time.perf_counter() - began


def one_by_one(folder: Path) -> float:
    """Seconds that mapped files take, each tensor copied as it comes."""
    began = time.perf_counter()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118 - the reader is no mapping
                reader.get_tensor(name).to(DEVICE)
    torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    typer.run(main)
