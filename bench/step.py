"""``python -m bench.step``: prefill and decode speed of one engine on one GPU, without a server.

Full-size model, random weights, temperature 1 so that routing stays near uniform. Each batch size
gets fresh random prompts; decode runs one step ahead of the host, as a worker does. A step's time
is the whole run's over its steps, host work included. Prompts of several lengths, each alone, show
what a first token waits for.
"""

import time
from itertools import product
from pathlib import Path
from typing import Annotated

import torch
import typer

from bench import result_file
from bench.engine_bench import FULL_SIZE, Bench, Run, load
from bench.gpu_environment import gpu_environment
from bench.harness.options import int_list
from bench.step_floor import floor_ms
from engine.model.registry import read_config

VLLM_MS = {1: 3.8, 2: 4.8, 4: 5.7, 8: 7.8, 16: 10.8, 32: 14.9, 64: 19.9}
"""Milliseconds per step of vLLM 0.25.1 with FULL_SIZE on an H200, by number of sequences: its
offline engine, 1,024 tokens in and out, on 2026-11-21. Its raw output is not kept."""


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
    sizes, numbers = int_list("--batches", batches), int_list("--constrained", constrained)
    lengths = int_list("--alone", alone) if alone else ()
    pages_each = -(-(max(input_len, long_input_len, *lengths) + output_len + 16) // 64)
    began, most = time.perf_counter(), max(2, *sizes)
    engine = load(model, pages_each * most, most, quantize, prefills=prefill_graphs)
    ready_s = time.perf_counter() - began
    free, total = torch.cuda.mem_get_info()
    print(f"ready in {ready_s:.1f} s; {(total - free) / 2**30:.1f} GiB of GPU memory in use")
    bench = Bench(engine)
    context, gpu = input_len + output_len // 2, torch.cuda.get_device_name()
    floors = {size: floor_ms(engine.model_config, size, context, gpu) for size in sizes}
    vllm = VLLM_MS if engine.model_config.layers == read_config(FULL_SIZE).layers else {}
    results = []
    print("batch  constrained  step ms  host ms  x floor  x vLLM  decode tok/s  prefill tok/s")
    for size, bench.num_constrained in product(sizes, numbers):
        run = Run(size, input_len, pages_each)
        bench.prefill(run, max_batch_tokens)
        prefill_s = bench.prefill_s(run, max_batch_tokens, prefill_times)
        decoded = bench.decode(run, output_len)
        step_ms, host_ms = 1e3 * decoded.step_s, 1e3 * decoded.host_s
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
        run = Run(2, long_input_len, pages_each)
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


if __name__ == "__main__":
    typer.run(main)
