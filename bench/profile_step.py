"""``python -m bench.profile_step``: one decode step, kernel by kernel, at several batch sizes.

Times are the GPU's own (CUPTI) inside graph replays. Kernels overlap where programmatic dependent
launch lets them, so shares may add up to more than the step. The first line of the output has the
machine and the versions.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from bench import environment
from bench.engine_bench import FULL_SIZE, WARM_STEPS, Bench, Run, load
from bench.harness.options import int_list

NUM_STEPS = 10
NAME_LEN = 60
"""Characters of a kernel's name that are shown."""


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder or config.")] = FULL_SIZE,
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,16,64",
    input_len: int = 1024,
    quantize: Annotated[str, typer.Option(help="none, or fp8.")] = "none",
    prefill: Annotated[bool, typer.Option(help="Profile a prefill batch as well.")] = False,
) -> None:
    sizes = int_list("--batches", batches)
    pages_each, most = -(-(input_len + 64) // 64), max(sizes)
    print(json.dumps(environment.describe(sys.argv[1:], "bench.profile_step")))
    bench = Bench(load(model, pages_each * most, most, quantize))
    for size in sizes:
        run = Run(size, input_len, pages_each)
        bench.prefill(run, 16_384)
        bench.decode(run, NUM_STEPS)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            began = time.perf_counter()
            bench.decode(run, NUM_STEPS)
            seconds = time.perf_counter() - began
        show(f"decode, batch {size}", profiled, NUM_STEPS + WARM_STEPS, seconds)
    if prefill:
        run = Run(16, input_len, pages_each)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            seconds = bench.prefill(run, 16_384)
        show(f"prefill, 16 x {input_len}", profiled, 1, seconds)


def show(title: str, profiled: profile, num_steps: int, seconds: float) -> None:
    """Print kernels by their share of a step."""
    kernels = kernel_us(profiled)
    total = sum(sum(each) for _, each in kernels) / num_steps
    print(f"\n{title}: {1e3 * seconds / num_steps:.3f} ms a step, kernels {total / 1e3:.3f} ms")
    print("   us/step  calls  us each  kernel")
    for name, each in kernels[:24]:
        calls = len(each) / num_steps
        print(f"{sum(each) / num_steps:10.1f} {calls:6.1f} {sum(each) / len(each):8.2f}  {name}")


def kernel_us(profiled: profile) -> list[tuple[str, list[float]]]:
    """µs of each launch by kernel, the kernels with the most time first."""
    times: dict[str, list[float]] = {}
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA:
            times.setdefault(event.name[:NAME_LEN], []).append(event.time_range.elapsed_us())
    return sorted(times.items(), key=lambda item: -sum(item[1]))


if __name__ == "__main__":
    typer.run(main)
