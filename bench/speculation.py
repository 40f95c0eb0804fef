"""``python -m bench.speculation``: what drafts cost and give on one GPU, without a server.

Full-size model, random weights. A random draft layer is never right, so drafts are accepted at
random with a given probability instead (``--acceptance``), as the result says. Steps are timed one
ahead of the host (bench/engine_bench.py); K "off" is an engine without the draft layer. For a fixed
K, tokens per second are the average that the acceptance gives, over the measured step. ``auto`` is
the workers' own choice of K from the first step on; its tokens are those that were accepted.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench import result_file
from bench.engine_bench import FULL_SIZE, WARM_STEPS, Bench, Run, load
from bench.gpu_environment import gpu_environment
from bench.harness.options import int_list
from decode.speculation import AUTO_DRAFTS, DraftPolicy, FixedDrafts, NoDrafts, draft_policy
from engine.draft_graphs import DraftGraphs

REPEATS = 40
"""Replays of each graph that is timed by itself."""


@dataclass(frozen=True)
class Case:
    """One case. ``drafts``: K, off or auto; auto is timed from its first step on."""

    batch: int
    drafts: str
    acceptance: float
    num_steps: int

    @property
    def num_warm(self) -> int:
        return 0 if self.drafts == "auto" else WARM_STEPS

    @property
    def max_drafts(self) -> int:
        if self.drafts == "auto":
            return AUTO_DRAFTS["cuda"]
        return 0 if self.drafts == "off" else int(self.drafts)

    @property
    def max_tokens(self) -> int:
        """The most tokens that a sequence may get."""
        return (self.num_warm + self.num_steps + 1) * (1 + self.max_drafts)

    @property
    def expected_tokens(self) -> float | None:
        """Expected tokens per step and sequence; None for auto, whose K changes."""
        if self.drafts == "auto":
            return None
        return sum(self.acceptance**i for i in range(1 + self.max_drafts))

    def policy(self) -> DraftPolicy:
        if self.drafts == "auto":
            return draft_policy("auto", self.max_drafts, "cuda")
        return NoDrafts() if self.drafts == "off" else FixedDrafts(self.max_drafts)


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder or config.")] = FULL_SIZE,
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,2,4,8,16,32,64",
    drafts: Annotated[
        str, typer.Option(help="Values of K. off, alone: an engine without the draft layer.")
    ] = "0,1,2,3",
    off: Annotated[Path | None, typer.Option(help="A result of off, to compare with.")] = None,
    acceptance: Annotated[str, typer.Option(help="Of each draft.")] = "0,0.5,0.8,0.9",
    input_len: int = 1024,
    num_steps: int = 48,
    auto_batches: Annotated[str, typer.Option(help="Batch sizes of auto.")] = "1,4,16,64,256",
    auto_acceptance: Annotated[str, typer.Option(help="Of each draft under auto.")] = "0,0.8",
    auto_steps: Annotated[int, typer.Option(help="From auto's start; 0: no auto.")] = 300,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("bench/results/drafts.json"),
    commit: Annotated[str, typer.Option(help="Where the code is not a git checkout.")] = "",
) -> None:
    plain: dict[tuple[int, int], float] = {}
    if off is not None:
        rows = json.loads(off.read_text())["steps"]
        plain = {(row["batch"], row["num_steps"]): row["tokens_per_s"] for row in rows}
    is_off = drafts == "off"
    cases = [
        Case(batch, number, rate, num_steps)
        for batch in int_list("--batches", batches)
        for number in drafts.split(",")
        for rate in (_rates(acceptance) if number not in ("off", "0") else [0.0])
    ]
    cases += [
        Case(batch, "off" if is_off else "auto", rate, auto_steps)
        for batch in int_list("--auto-batches", auto_batches) * (auto_steps > 0)
        for rate in ([0.0] if is_off else _rates(auto_acceptance))
    ]
    steps, graphs = _measure(model, cases, input_len, plain)
    report = {
        "environment": gpu_environment("bench.speculation", commit),
        "acceptance": "given, not measured: random weights, a draft is accepted by lot",
        "input_len": input_len,
        "steps": steps,
        "graphs": graphs,
    }
    result_file.write(out, report)


def _measure(
    model: Path, cases: list[Case], input_len: int, plain: dict[tuple[int, int], float]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measure all cases; returns their rows, and the times of graphs for each batch of K = 0."""
    most = max(case.batch for case in cases)
    pages_each = -(-(input_len + max(case.max_tokens for case in cases)) // 64)
    max_drafts = max(case.max_drafts + (case.drafts == "0") for case in cases)
    began = time.perf_counter()
    engine = load(model, pages_each * most, max(2, most), max_drafts=max_drafts)
    print(f"ready in {time.perf_counter() - began:.1f} s", flush=True)
    bench, found, graphs = Bench(engine), [], []
    print("batch  K     accepted  steps  step ms  tokens  expected    tok/s  x off")
    for case in cases:
        engine._sampler.accept_drafts(case.acceptance)
        run = Run(case.batch, input_len, pages_each)
        bench.prefill(run, 16 * input_len)
        seconds, _, tokens = bench.decode(run, case.num_steps, case.policy(), case.num_warm)
        expected = case.expected_tokens
        tok_s = case.batch * (expected or tokens) / seconds
        row: dict[str, Any] = {
            "batch": case.batch,
            "drafts": case.drafts,
            "acceptance": case.acceptance,
            "num_steps": case.num_steps,
            "step_ms": round(1e3 * seconds, 3),
            "tokens_a_step": round(tokens, 3),
            "expected_tokens": expected and round(expected, 3),
            "tokens_per_s": round(tok_s),
        }
        row["times_off"] = round(tok_s / plain.get((case.batch, case.num_steps), float("nan")), 3)
        found.append(row)
        print("{:5}  {:4} {:9} {:6} {:8} {:7} {!s:>9} {:8} {:6}".format(*row.values()), flush=True)
        if case.drafts == "0" and isinstance(engine._drafts, DraftGraphs):
            times = graph_times(engine._drafts, case.batch)
            graphs.append({"batch": case.batch} | times)
            print(f"       graphs, ms: {times}", flush=True)
    return found, graphs


def graph_times(drafts: DraftGraphs, batch: int) -> dict[str, float]:
    """Milliseconds (medians) of the graphs of a decode step with drafts, in their order.

    Call it right after a step of ``batch`` sequences without drafts: the graphs read its rows.
    ``verify_ms``: the model with one token each. ``kv_ms``: the draft layer's KV alone.
    ``layer_ms``: the whole draft layer. ``head_ms``: the choice of the first draft. ``draft_ms``:
    a further draft, with its layer and its choice.
    """
    shape, layer = (batch, 0), drafts.layer
    graphs: dict[str, Callable[[], None]] = {
        "verify_ms": drafts.verify_graphs[shape].replay,
        "kv_ms": layer.kv_graphs[shape].replay,
        "layer_ms": layer.layer_graphs[shape].replay,
        "head_ms": layer.draft_graphs[batch, 0].replay,
    }
    if (batch, 1) in layer.draft_graphs:
        graphs["draft_ms"] = layer.draft_graphs[batch, 1].replay
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(REPEATS):
        # The model takes milliseconds, so the host is ahead and the graphs follow without gaps.
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(graphs) + 1)]
        events[0].record()
        for replay, event in zip(graphs.values(), events[1:], strict=True):
            replay()
            event.record()
        events[-1].synchronize()
        for i, name in enumerate(graphs):
            taken[name].append(events[i].elapsed_time(events[i + 1]))
    return {name: round(statistics.median(values), 4) for name, values in taken.items()}


def _rates(text: str) -> list[float]:
    return [float(rate) for rate in text.split(",")]


if __name__ == "__main__":
    typer.run(main)
