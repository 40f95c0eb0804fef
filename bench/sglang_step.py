"""``python -m bench.sglang_step``: steps of SGLang's offline engine, to compare with bench.step.

It runs where SGLang is installed, with the folder of a model's configuration alone: random weights,
no tokenizer. Each batch comes at once, with random ids and temperature 1. A decode step's time is
the difference between answers of ``output_len`` tokens and of one, over their steps.
"""

import json
import os
import random
import sys
import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import result_file
from bench.gpu_environment import gpu_environment
from bench.harness.options import int_list

WARM_TOKENS = 32


class Peer:
    """SGLang's engine with prompts that nothing has cached. ``settings``: its arguments."""

    def __init__(self, num_ids: int, settings: dict[str, Any]) -> None:
        self._engine = import_module("sglang").Engine(**settings)
        self._num_ids, self._draw = num_ids, random.Random(0)

    def wave_s(self, batch: int, input_len: int, output_len: int) -> float:
        """Seconds for ``batch`` requests that come together."""
        prompts = [
            [self._draw.randrange(self._num_ids) for _ in range(input_len)] for _ in range(batch)
        ]
        sampling = {"temperature": 1.0, "max_new_tokens": output_len, "ignore_eos": True}
        began = time.perf_counter()
        answers = self._engine.generate(input_ids=prompts, sampling_params=sampling)
        seconds = time.perf_counter() - began
        counts = {answer["meta_info"]["completion_tokens"] for answer in answers}
        assert counts == {output_len}, f"{counts} tokens instead of {output_len}"
        return seconds

    def close(self) -> None:
        self._engine.shutdown()


def main(
    model: Annotated[Path, typer.Option(help="Folder with config.json.")],
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,16,64,128",
    input_len: int = 1024,
    output_len: int = 1024,
    engine: Annotated[
        str, typer.Option(help="Further arguments of SGLang's Engine, as a JSON object.")
    ] = "{}",
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("bench/results/sglang.json"),
    commit: Annotated[str, typer.Option(help="Where the code is not a git checkout.")] = "",
) -> None:
    """Steps of SGLang by batch size. The result file is written after each size."""
    sizes = int_list("--batches", batches)
    if output_len < 2:
        raise typer.BadParameter(f"--output-len: {output_len} is below 2")
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    settings: dict[str, Any] = {
        "model_path": str(model), "load_format": "dummy", "skip_tokenizer_init": True,
        "dtype": "bfloat16", "disable_radix_cache": True, "max_running_requests": max(sizes),
        "cuda_graph_max_bs_decode": max(sizes), "context_length": input_len + output_len + 64,
        "mem_fraction_static": 0.85, "attention_backend": "triton", "sampling_backend": "pytorch",
    } | json.loads(engine)  # fmt: skip
    began = time.perf_counter()
    config = json.loads((model / "config.json").read_text())
    peer = Peer(config.get("text_config", config)["vocab_size"], settings)
    ready_s = time.perf_counter() - began
    print(f"ready in {ready_s:.1f} s", flush=True)
    for batch in (min(sizes), max(sizes)):
        peer.wave_s(batch, input_len, WARM_TOKENS)
    results = []
    for batch in sizes:
        prefill_s = peer.wave_s(batch, input_len, 1)
        seconds = peer.wave_s(batch, input_len, output_len)
        row = {
            "batch": batch,
            "step_ms": 1e3 * (seconds - prefill_s) / (output_len - 1),
            "prefill_tokens_per_s": batch * input_len / prefill_s,
            "total_tokens_per_s": batch * (input_len + output_len) / seconds,
        }
        results.append(row)
        print(json.dumps(row), flush=True)
        report = {
            "environment": gpu_environment("bench.sglang_step", commit) | {"sglang": _version()},
            "engine": settings | {"model_path": model.name},
            "ready_s": ready_s,
            "input_len": input_len,
            "output_len": output_len,
            "batches": results,
        }
        result_file.write(out, report)
    peer.close()


def _version() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:  # unpacked without its metadata
        return str(getattr(sys.modules["sglang"], "__version__", "unknown"))


if __name__ == "__main__":
    typer.run(main)
