"""``python -m bench.speculation``: what drafts cost and give on one GPU, without a server.

Full-size model, random weights. A random draft layer is never right, so drafts are accepted with a
given probability instead (``--acceptance``), which the result says. Steps are timed as in
bench/step.py, one ahead of the host; K "off" is an engine without the draft layer.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench import result_file
from bench.step import FULL_SIZE, gpu_environment
from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig
from engine.draft_graphs import DraftGraphs
from engine.runner import Engine
from engine.step import Step
from transport.copy.memory import own_memory
from transport.wire.sampling import SamplingParams, StopRule


class Bench:
    """All sequences in step, with prompts of one length."""

    def __init__(self, engine: Engine, input_len: int, pages_each: int) -> None:
        self._engine, self._input_len, self._pages_each = engine, input_len, pages_each
        self._generator = torch.Generator().manual_seed(0)

    def prefill(self, batch: int) -> None:
        num_ids, shape = self._engine.num_ids, (batch, self._input_len)
        prompts = torch.randint(0, num_ids, shape, generator=self._generator).tolist()
        for slot, prompt in enumerate(prompts):
            sampling = SamplingParams(temperature=1.0, seed=slot)
            self._engine.bind(Binding(slot, tuple(prompt), (), sampling, StopRule(1 << 20)))
        for first in range(0, batch, 16):
            slots = range(first, min(first + 16, batch))
            rows = tuple(Row(s, self._pages(s), 0, tuple(prompts[s])) for s in slots)
            self._engine.launch(ForwardBatch(rows)).result()

    def decode(self, batch: int, num_drafts: int | None, num_steps: int) -> tuple[float, float]:
        """(seconds a step, tokens a step and sequence)."""
        pending: Step | None = None
        began = num_tokens = 0.0
        for step in range(num_steps + 8):
            if step == 8:
                torch.cuda.synchronize()
                began, num_tokens = time.perf_counter(), 0.0
            rows = tuple(
                Row(s, self._pages(s), self._input_len + step, None, num_drafts=num_drafts or 0)
                for s in range(batch)
            )
            launched = self._engine.launch(ForwardBatch(rows, num_drafts))
            if pending is not None:
                num_tokens += self._tokens(pending)
            pending = launched
        assert pending is not None, "no steps"
        num_tokens += self._tokens(pending)
        seconds = (time.perf_counter() - began) / num_steps
        return seconds, num_tokens / (num_steps + 1) / batch

    @staticmethod
    def _tokens(step: Step) -> int:
        sampled = step.result().sampled
        assert all(s.token_id is not None for each in sampled for s in each), "NaN"
        return sum(len(each) for each in sampled)

    def _pages(self, slot: int) -> tuple[int, ...]:
        return tuple(range(slot * self._pages_each, (slot + 1) * self._pages_each))


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder or config.")] = FULL_SIZE,
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,2,4,8,16,32,64",
    drafts: Annotated[
        str,
        typer.Option(help="K; none: the layer is not computed. off, alone: an engine without it."),
    ] = "none,0,1,2,3",
    off: Annotated[Path | None, typer.Option(help="A result of off, to compare with.")] = None,
    acceptance: Annotated[str, typer.Option(help="Of each draft.")] = "0,0.5,0.8,0.9",
    input_len: int = 1024,
    num_steps: int = 128,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("bench/results/drafts.json"),
    commit: Annotated[str, typer.Option(help="Where the code is not a git checkout.")] = "",
) -> None:
    sizes = [int(size) for size in batches.split(",")]
    wanted, rates = drafts.split(","), [float(rate) for rate in acceptance.split(",")]
    print("batch  K     accepted  step ms  tokens a step  tok/s  x off")
    plain: dict[int, float] = {}
    if off is not None:
        steps = json.loads(off.read_text())["steps"]
        plain = {row["batch"]: row["tokens_per_s"] for row in steps if row["drafts"] == "off"}
    results = _measure(model, sizes, wanted, rates, input_len, num_steps, plain)
    report = {
        "environment": gpu_environment("bench.speculation", commit),
        "acceptance": "given, not measured: random weights, a draft is accepted by lot",
        "input_len": input_len,
        "num_steps": num_steps,
        "steps": results,
    }
    result_file.write(out, report)


def _measure(
    model: Path,
    sizes: list[int],
    numbers: list[str],
    rates: list[float],
    input_len: int,
    num_steps: int,
    plain: dict[int, float],
) -> list[dict[str, Any]]:
    max_drafts = max((int(number) for number in numbers if number.isdecimal()), default=0)
    pages_each = -(-(input_len + (num_steps + 16) * (1 + max_drafts)) // 64)
    began = time.perf_counter()
    memory = own_memory("cuda", f"bench-{max_drafts}")
    config = EngineConfig(
        model_dir=model, load_format="dummy", device="cuda", num_pages=pages_each * max(sizes),
        num_state_slots=max(2, *sizes), max_drafts=max(1, max_drafts) * (numbers != ["off"]),
    )  # fmt: skip
    engine = Engine.load(config, memory.allocate)
    print(f"ready in {time.perf_counter() - began:.1f} s", flush=True)
    bench, found = Bench(engine, input_len, pages_each), list[dict[str, Any]]()
    for batch in sizes:
        for number in numbers:
            num = int(number) if number.isdecimal() else None
            for rate in rates if num else rates[:1]:
                if isinstance(engine._drafts, DraftGraphs):
                    engine._drafts.forced = rate if num else None
                bench.prefill(batch)
                seconds, tokens = bench.decode(batch, num, num_steps)
                tok_s = batch * tokens / seconds
                row: dict[str, Any] = {
                    "batch": batch,
                    "drafts": number,
                    "acceptance": rate if num else None,
                    "step_ms": round(1e3 * seconds, 3),
                    "tokens_a_step": round(tokens, 3),
                    "tokens_per_s": round(tok_s),
                }
                row["times_off"] = round(tok_s / plain.get(batch, float("nan")), 3)
                found.append(row)
                print("{:5}  {:4} {!s:>9} {:8} {:13} {:7} {:6}".format(*row.values()), flush=True)
    del engine, bench
    memory.close()
    return found


if __name__ == "__main__":
    typer.run(main)
