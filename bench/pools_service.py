"""``python -m bench.pools_service``: pools that follow the load against fixed ones, through HTTP.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.pools_service --model /tmp/full --stacks auto:1+1,split:1+1,colocated:2 \\
        --loads agents:32,shift:6,TRACE.csv:12 --out bench/results/h200x2-pools.json -- \\
        --load-format dummy --device cuda --speculate off --quantize fp8

A stack is ``auto:P+D``, whose pools begin so, or a set-up of bench/setups.py. A load is

    agents:N    N conversations of ``--turns`` turns behind a cached ``--context`` that they share.
                Each turn adds ``--new`` tokens and is answered by ``--answer`` tokens.
    shift:RATE  RATE requests a second. 300 have 8,192 tokens in and 32 out, the next 300 have 256
                in and 1,024 out, and so on (bench/predict/changes.py).
    FILE:RATE   A public trace at RATE requests a second.

Requests of ``shift`` and of traces begin within ``--seconds``. Of each load the result has the
latencies, the share of requests within the targets, what the coordinator counted meanwhile (roles
changed, sequences moved, prompts and sequences that crossed the pools' border), and each second the
pools: prefill workers, and what each worker decodes.

Exit status: 0, 1 when a request failed or a load was not measured.
"""

import csv
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.commands import CommandFailed
from bench.harness.workload.plan import Planned
from bench.predict.changes import shift
from bench.setups import Setup
from bench.stack import Stack
from bench.stack_runs import StackRuns, measured


@dataclass(frozen=True)
class Conversations:
    """How long the conversations of ``agents`` are, in turns and tokens."""

    turns: int = 3
    context: int = 57_600
    new: int = 6_400
    answer: int = 400

    def options(self) -> list[str]:
        lengths = ["--agents-turn-len", str(self.new), "--output-len", str(self.answer)]
        context = ["--agents-own-prefix", "0", "--agents-shared-prefix", str(self.context)]
        return ["--turns", str(self.turns), "--agents-shape", "deep", *context, *lengths]


COUNTERS = ("role_changes", "moves", "crossed_pools", "spread_steps", "spread_local_steps")
LOAD_S = 400.0
SEED = "1"
"""Every stack is sent the same requests."""


def arguments_of(stack: str, targets: Sequence[str]) -> list[str]:
    """The arguments of ``baton up``. Raises ValueError."""
    kind, _, sizes = stack.partition(":")
    if kind != "auto":
        return Setup.parse(stack).arguments()
    return [*Setup.parse(f"split:{sizes}").arguments(), "--pools", "auto", *targets]


def options_of(
    load: str, folder: Path, conversations: Conversations, seconds: float, slo: Sequence[str]
) -> list[str]:
    """The options of ``baton bench load``. Raises ValueError."""
    kind, _, number = load.rpartition(":")
    if kind == "agents":
        return ["--agents", number, *conversations.options()]
    path = Path(kind)
    if kind == "shift":
        path = folder / "shift.csv"
        _write_trace(path, shift(10, 10))
    arrivals = ["--trace", str(path), "--rate", number, "--duration-s", str(seconds)]
    return [*arrivals, "--prompt-as", "ids", *slo]


def _write_trace(path: Path, planned: Sequence[Planned]) -> None:
    """In the format of Azure's traces."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
        for each in planned:
            at = datetime.fromtimestamp(each.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            lines.writerow((at, each.input_len, each.output_len))


@contextmanager
def watched(served: Stack) -> Iterator[list[dict[str, Any]]]:
    """Collects each second how the pools stand."""
    found: list[dict[str, Any]] = []
    ended, began = threading.Event(), time.monotonic()

    def watch() -> None:
        while not ended.wait(1.0):
            workers = served.workers()
            found.append(
                {
                    "second": round(time.monotonic() - began, 1),
                    "prefill": sum(worker["role"] == "prefill" for worker in workers),
                    "running": [worker["running"] for worker in workers],
                    "waiting": [worker["waiting"] for worker in workers],
                }
            )

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def measured_load(
    served: Stack, model: Path, options: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """The figures of a load, and the run's problems. Raises CommandFailed if there are none."""
    with watched(served) as pools:
        results, problems = measured(
            served, COUNTERS, "load", "--tokenizer", str(model), "--seed", SEED, *options,
            within_s=LOAD_S,
        )  # fmt: skip
    figures = [*results.get("levels", ()), *filter(None, [results.get("run")])]
    if not figures:
        raise CommandFailed("; ".join(problems) or "the load has no figures")
    more = {"counters": results["counters"], "pools": pools, "timeline": results["timeline"]}
    return figures[0] | more, problems


def line(found: dict[str, Any]) -> str:
    ttft, tpot, gaps = (found[name] for name in ("ttft_ms", "tpot_ms", "itl_ms"))
    share = f"{found['attained']:.1%} within the targets, " if "attained" in found else ""
    counters = ", ".join(f"{name} {number:g}" for name, number in found["counters"].items())
    return (
        f"{found['output_tok_s']:.0f} output tok/s, {share}TTFT {ttft['p50']:.0f} / "
        f"{ttft['p90']:.0f}, TPOT {tpot['p50']:.1f} / {tpot['p90']:.1f}, gaps p99 "
        f"{gaps['p99']:.1f} ms; {counters}"
    )


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    up: Annotated[list[str] | None, typer.Argument(help="For baton up, behind --.")] = None,
    stacks: Annotated[str, typer.Option(help="Commas between.")] = "auto:1+1,colocated:2",
    loads: Annotated[str, typer.Option(help="Commas between.")] = "agents:32",
    turns: int = 3,
    context: Annotated[int, typer.Option(help="Tokens that all conversations share.")] = 57_600,
    new: Annotated[int, typer.Option(help="Tokens that each turn adds.")] = 6_400,
    answer: Annotated[int, typer.Option(help="Tokens of each answer.")] = 400,
    seconds: Annotated[float, typer.Option(help="Arrivals of shift and of traces.")] = 120.0,
    target_ttft_ms: float = 2_000.0,
    target_tpot_ms: float = 50.0,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("pools-service.json"),
) -> None:
    ttft, tpot = str(target_ttft_ms), str(target_tpot_ms)
    targets = ["--target-ttft-ms", ttft, "--target-tpot-ms", tpot]
    slo = ["--slo-ttft-ms", ttft, "--slo-tpot-ms", tpot]
    conversations = Conversations(turns, context, new, answer)
    settings = {
        "up": up or [], "conversations": asdict(conversations), "seconds": seconds,
        "targets_ms": [target_ttft_ms, target_tpot_ms],
    }  # fmt: skip
    runs = StackRuns("bench.pools_service", out, settings)

    def load(name: str, served: Stack, row: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as at:
            for each in loads.split(","):
                options = options_of(each, Path(at), conversations, seconds, slo)
                row[each], wrong = measured_load(served, model, options)
                runs.problems += [f"{name}, {each}: {problem}" for problem in wrong]
                print(f"{name:12} {each}: {line(row[each])}", flush=True)

    for name in stacks.split(","):
        arguments = [*arguments_of(name, targets), "--model", str(model), *(up or [])]
        runs.measure(name, arguments, partial(load, name))
    runs.end()


if __name__ == "__main__":
    typer.run(main)
