"""``python -m bench.handoff_copy measure``: how fast handoffs are copied from GPU to GPU.

    python -m bench.handoff_copy measure --gpus 0,1 --out bench/results/h200-handoff-copy.json

A second process on the first GPU exports a region of the full-size model's layout through CUDA
IPC; this one pulls from it on the second GPU with the copy stream that a decode worker has. For
each prompt length and number of handoffs wanted together:

    us         from the first copy's start to the last one's end, by the GPU's clock, median.
    wall_us    from the call to the host seeing the end, median.
    gb_per_s   bytes over ``us``.

Plain copies of as many bytes are measured too (one ``cudaMemcpyAsync``, and one for each block).
After every case, all bytes of all blocks are compared with those that the exporter wrote. Other
launches (``CopyShape``), the cost of a copy on the host and its cost for other kernels were
measured once and are in the committed result.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from bench import result_file
from bench.environment import describe
from transport.wire.layout import PoolSize
from transport.wire.memory_export import MemoryExport

TARGET_GB_PER_S, TARGET_1K_US = 350.0, 350.0
START_S = 120.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(hidden=True)
def export(device: int, num_pages: int, num_state_slots: int) -> None:
    """Export memory: print how to reach it, and stay until the input ends."""
    from bench import handoff_copy_runs

    handoff_copy_runs.export(device, PoolSize(num_pages, num_state_slots))


@app.command()
def measure(
    gpus: Annotated[str, typer.Option(help="From, to.")] = "0,1",
    prompts: Annotated[str, typer.Option(help="Prompt lengths.")] = "1024,8192,32768",
    handoffs: Annotated[str, typer.Option(help="Handoffs wanted together.")] = "1,4,16",
    repeats: int = 20,
    out: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    """Measure every case; exit status 1 when a byte or the self-test was wrong."""
    import torch
    import triton

    from bench.handoff_copy_runs import CEILING_GB_PER_S, Bench, Case
    from transport.copy.kernel import CopyShape

    source, target = _numbers(gpus)
    cases = [Case(n, k) for n in _numbers(prompts) for k in _numbers(handoffs)]
    size = PoolSize(
        max(case.pages_each * case.num_handoffs for case in cases),
        max(case.num_handoffs for case in cases),
    )
    with exporting(source, size) as exported:
        bench = Bench(exported, target, size, repeats)
        result: dict[str, Any] = {
            "gpus": [torch.cuda.get_device_name(gpu) for gpu in (source, target)],
            "peer_access": source == target or torch.cuda.can_device_access_peer(target, source),
            "ceiling_gb_per_s": CEILING_GB_PER_S,
            "triton": triton.__version__,
            "default_shape": asdict(CopyShape()),
            "selftest": bench.selftest(),
            "plain": [row for case in cases for row in bench.plain(case)],
            "default": [bench.pulled(case, CopyShape()) for case in cases],
        }
    rows = {(row["num_tokens"], row["handoffs"]): row for row in result["default"]}
    if one := rows.get((1024, 1)):
        result["targets"] = {
            "gb_per_s": max(row["gb_per_s"] for row in rows.values()) >= TARGET_GB_PER_S,
            "1k_us": one["us"] <= TARGET_1K_US,
        }
    result["wrong_bytes"] = sum(row["wrong_bytes"] for row in rows.values())
    problems = [result["selftest"]["problem"]] if result["selftest"]["problem"] else []
    if result["wrong_bytes"]:
        problems.append(f"{result['wrong_bytes']} bytes are not what the exporter wrote")
    document = result_file.document(
        "handoff-copy",
        environment=describe(sys.argv[1:], "bench.handoff_copy"),
        settings={"prompts": prompts, "handoffs": handoffs, "repeats": repeats},
        results=result,
        problems=problems,
    )
    if out is not None:
        result_file.save(out, document)
    print(json.dumps({k: result.get(k) for k in ("selftest", "targets", "wrong_bytes")}))
    raise typer.Exit(1 if problems else 0)


@contextmanager
def exporting(device: int, size: PoolSize) -> Iterator[MemoryExport]:
    """The export of a process on ``device``, which lives as long as this is entered."""
    arguments = ["export", str(device), str(size.num_pages), str(size.num_state_slots)]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.handoff_copy", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield msgspec.json.decode(first_line(process, START_S), type=MemoryExport)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def first_line(process: "subprocess.Popen[str]", within_s: float) -> str:
    """The first line of output. Raises SystemExit without one in ``within_s``, and then kills the
    process."""
    assert process.stdout is not None
    late = threading.Timer(within_s, process.kill)
    late.start()
    try:
        if line := process.stdout.readline():
            return line
        status = process.wait()
    finally:
        late.cancel()
    raise SystemExit(
        f"the exporter ended with {status} before it exported anything; it has {within_s:g} s"
    )


def _numbers(listed: str) -> list[int]:
    return [int(number) for number in listed.split(",")]


if __name__ == "__main__":
    app()
