"""``python -m bench.step``: prefill and decode speed of one engine on one GPU, without a server.

Full-size model, random weights, temperature 1 so that routing stays near uniform. Each batch size
gets fresh random prompts; decode runs one step ahead of the host, as a worker does. A step's time
is the whole run's over its steps, host work included. Prompts of several lengths, each alone, show
what a first token waits for.
"""

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from llguidance import LLMatcher

from bench import result_file
from bench.environment import describe
from bench.step_floor import floor_ms
from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig, Quantize
from engine.model.registry import read_config
from engine.runner import Engine
from engine.step import Step
from transport.copy.memory import own_memory
from transport.wire.sampling import Constraint, SamplingParams, StopRule

FULL_SIZE = Path("bench/models/qwen3.5-35b-a3b")
VLLM_MS = {1: 3.8, 2: 4.8, 4: 5.7, 8: 7.8, 16: 10.8, 32: 14.9, 64: 19.9}
"""Milliseconds per step of vLLM 0.25.1 with FULL_SIZE on an H200, by number of sequences: its
offline engine, 1,024 tokens in and out, on 2026-11-21. Its raw output is not kept."""


CONSTRAINT = Constraint(
    LLMatcher.grammar_from_json_schema(
        {
            "type": "array",
            "minItems": 1_000_000,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 40},
                    "n": {"type": "integer"},
                },
                "required": ["name", "n"],
                "additionalProperties": False,
            },
        }
    )
)


@dataclass(frozen=True)
class Run:
    """One batch size: prompts in, tokens out."""

    batch: int
    input_len: int
    output_len: int
    pages_each: int


class Bench:
    """Drives an engine the way the two pools do, with all sequences in step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.num_constrained = 0
        """How many sequences, from the first on, follow a JSON schema."""
        self._generator = torch.Generator().manual_seed(0)

    def prefill(self, run: Run, max_batch_tokens: int) -> float:
        """Seconds to compute every prompt and sample its first token."""
        each = max(1, max_batch_tokens // run.input_len)
        prompts = torch.randint(
            0, self._engine.num_ids, (run.batch, run.input_len), generator=self._generator
        ).tolist()
        for slot, prompt in enumerate(prompts):
            self._bind(slot, tuple(prompt))
        torch.cuda.synchronize()
        began = time.perf_counter()
        steps = []
        for first in range(0, run.batch, each):
            slots = range(first, min(first + each, run.batch))
            if run.input_len <= max_batch_tokens:
                rows = [self._row(run, slot, 0, tuple(prompts[slot])) for slot in slots]
                steps.append(self._engine.launch(ForwardBatch(tuple(rows))))
                continue
            for start in range(0, run.input_len, max_batch_tokens):
                chunk = tuple(prompts[first][start : start + max_batch_tokens])
                row = self._row(run, first, start, chunk)
                steps.append(self._engine.launch(ForwardBatch((row,))))
        for step in steps:
            step.result()
        return time.perf_counter() - began

    def prefill_s(self, run: Run, max_batch_tokens: int, times: int) -> float:
        """Median of several runs."""
        return statistics.median(self.prefill(run, max_batch_tokens) for _ in range(times))

    def alone(self, length: int, pages_each: int) -> float:
        """ms from a prompt's launch to its first token, median."""
        run = Run(1, length, 0, pages_each)
        seconds = [self.prefill(run, max(length, 16_384)) for _ in range(8)]
        return round(1e3 * statistics.median(seconds[1:]), 2)

    def decode(self, run: Run, num_steps: int) -> tuple[float, float]:
        """(seconds per step, seconds per step in which the host worked), after the prompts."""
        pending: Step | None = None
        began = waited = 0.0
        for step in range(num_steps + 8):
            if step == 8:
                torch.cuda.synchronize()
                began, waited = time.perf_counter(), 0.0
            rows = [self._row(run, slot, run.input_len + step, None) for slot in range(run.batch)]
            launched = self._engine.launch(ForwardBatch(tuple(rows)))
            if pending is not None:
                blocked_at = time.perf_counter()
                pending.wait()
                waited += time.perf_counter() - blocked_at
                sampled = pending.result().sampled
                assert all(s.token_id is not None for each in sampled for s in each), "NaN"
            pending = launched
        assert pending is not None, "no steps"
        pending.result()
        seconds = time.perf_counter() - began
        return seconds / num_steps, (seconds - waited) / num_steps

    def _bind(self, slot: int, prompt: tuple[int, ...]) -> None:
        constraint = CONSTRAINT if slot < self.num_constrained else None
        sampling = SamplingParams(temperature=1.0, seed=slot, constraint=constraint)
        self._engine.bind(Binding(slot, prompt, (), sampling, StopRule(1 << 20)))

    def _row(
        self, run: Run, slot: int, start: int, tokens: tuple[int, ...] | None, num_drafts: int = 0
    ) -> Row:
        pages = tuple(range(slot * run.pages_each, (slot + 1) * run.pages_each))
        last = tokens is None or start + len(tokens) == run.input_len
        return Row(slot, pages, start, tokens, sample=last, num_drafts=num_drafts)


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder or config.")] = FULL_SIZE,
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,2,4,8,16,32,64",
    input_len: int = 1024,
    output_len: int = 1024,
    max_batch_tokens: int = 16_384,
    long_input_len: Annotated[
        int, typer.Option(help="Length of the long prompts; 0: none.")
    ] = 8192,
    alone: Annotated[
        str, typer.Option(help="Lengths of single prompts.")
    ] = "1,64,128,256,512,1024,1500,2048,4096,8192",
    quantize: Annotated[str, typer.Option(help="none, fp8 or nvfp4.")] = "none",
    constrained: Annotated[
        str,
        typer.Option(
            help="How many sequences follow a JSON schema, several in turn; --model then needs a "
            "tokenizer."
        ),
    ] = "0",
    prefill_graphs: Annotated[bool, typer.Option(help="Short passes as CUDA graphs.")] = True,
    prefill_times: Annotated[int, typer.Option(help="How often each batch is prefilled.")] = 5,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("bench/results/step.json"),
    commit: Annotated[str, typer.Option(help="Where the code is not a git checkout.")] = "",
) -> None:
    sizes = [int(size) for size in batches.split(",")]
    lengths = [int(length) for length in alone.split(",") if length]
    pages_each = -(-(max(input_len, long_input_len, *lengths) + output_len + 16) // 64)
    began = time.perf_counter()
    config = EngineConfig(
        model_dir=model,
        load_format="dummy",
        device="cuda",
        num_pages=pages_each * max(2, *sizes),
        num_state_slots=max(2, *sizes),
        prefills=prefill_graphs,
        quantize=cast(Quantize, quantize),
    )
    engine = Engine.load(config, own_memory("cuda", "bench").allocate)
    ready_s = time.perf_counter() - began
    free, total = torch.cuda.mem_get_info()
    print(f"ready in {ready_s:.1f} s; {(total - free) / 2**30:.1f} GiB of GPU memory in use")
    bench = Bench(engine)
    context, gpu = input_len + output_len // 2, torch.cuda.get_device_name()
    floors = {size: floor_ms(engine.model_config, size, context, gpu) for size in sizes}
    vllm = VLLM_MS if engine.model_config.layers == read_config(FULL_SIZE).layers else {}
    results = []
    numbers = [int(number) for number in constrained.split(",")]
    print("batch  constrained  step ms  host ms  x floor  x vLLM  decode tok/s  prefill tok/s")
    for size, bench.num_constrained in product(sizes, numbers):
        run = Run(size, input_len, output_len, pages_each)
        bench.prefill(run, max_batch_tokens)
        prefill_s = bench.prefill_s(run, max_batch_tokens, prefill_times)
        step_ms, host_ms = (1e3 * seconds for seconds in bench.decode(run, output_len))
        row = {
            "batch": size,
            "constrained": bench.num_constrained,
            "step_ms": round(step_ms, 3),
            "host_ms": round(host_ms, 3),
            "times_floor": round(step_ms / (floors.get(size) or float("nan")), 2),
            "times_vllm": round(step_ms / vllm.get(size, float("nan")), 2),
            "decode_tokens_per_s": round(size / step_ms * 1e3),
            "prefill_tokens_per_s": round(size * input_len / prefill_s),
        }
        results.append(row)
        print("{:5} {:12} {:8} {:8} {:8} {:7} {:13} {:14}".format(*row.values()), flush=True)
    long_prompts = None
    if long_input_len:
        run = Run(2, long_input_len, 0, pages_each)
        bench.prefill(run, max_batch_tokens)
        seconds = bench.prefill_s(run, max_batch_tokens, prefill_times)
        long_prompts = {"input_len": long_input_len, "tokens_per_s": 2 * long_input_len / seconds}
        print(f"prompts of {long_input_len}: {long_prompts['tokens_per_s']:.0f} tok/s")
    single_prompts = {length: bench.alone(length, pages_each) for length in lengths}
    print("a prompt alone, ms:", single_prompts)
    report = {
        "environment": gpu_environment("bench.step", commit),
        "ready_s": round(ready_s, 1),
        "input_len": input_len,
        "output_len": output_len,
        "floors_ms": {size: floors.get(size) for size in sizes},
        "batches": results,
        "long_prompts": long_prompts,
        "single_prompts_ms": single_prompts,
    }
    result_file.write(out, report)


def gpu_environment(module: str, commit: str) -> dict[str, Any]:
    """Where a result was made: machine, GPU and versions; ``commit`` where there is no checkout."""
    return describe(sys.argv[1:], module) | _gpu() | ({"commit": commit} if commit else {})


def _gpu() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    name, _, driver = (
        subprocess.run(query, capture_output=True, text=True, check=True)
        .stdout.strip()
        .partition(", ")
    )
    return {
        "gpu": name,
        "driver": driver,
        "cuda": torch.version.cuda or "",
        "triton": version("triton"),
    }


if __name__ == "__main__":
    typer.run(main)
