"""``python -m bench.overlap``: a prompt behind a deep context beside steps, on a divided GPU.

Of each share of the multiprocessors that steps have, and each number of sequences: the time of a
prompt, the steps that are computed meanwhile, and by what factor both one behind the other on the
whole GPU would take longer. All sequences share the context. Weights are random.
"""

import random
import time
from collections import deque
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from bench.engine_bench import FULL_SIZE, load
from bench.harness.options import int_list
from bench.recording import Recording
from engine.batch import Binding, ForwardBatch, Row
from engine.divided_gpu import STEPS_SHARES, DividedGpu
from engine.graphs.decode_graphs import DecodeGraphs
from engine.kernels.shared_memory import most_shared_memory
from engine.overlap import Overlap
from engine.step import Step
from transport.wire.sampling import SamplingParams, StopRule
from worker.overlapped import ENQUEUE_SHARE

PAGE, OWN, MOST_STEPS = 64, 6_400, 2_000
MAX_ROWS, PROMPT_SLOTS = 32, (40, 41)
PROMPTS = 3


class Sequences:
    """Sequences that share a context of ``shared`` tokens, and a prompt of ``new`` behind it."""

    def __init__(self, model: Path, quantize: str, shared: int, new: int) -> None:
        own, context = -(-(OWN + MOST_STEPS) // PAGE), shared // PAGE
        num_pages = context + MAX_ROWS * own + -(-new // PAGE)
        buckets = (1, 8, MAX_ROWS)
        self.engine = load(model, num_pages, 64, quantize, decode_buckets=buckets, overlap="on")
        self.engine.cache.kv.normal_(0, 0.5)
        draw, pages = random.Random(1), count(context)
        self._shared, self._start = list(range(context)), shared + OWN
        self._tables = [
            [*self._shared, *(next(pages) for _ in range(own))] for _ in range(MAX_ROWS)
        ]
        self._prompt = tuple(draw.randrange(200_000) for _ in range(new))
        self._table = [*self._shared, *(next(pages) for _ in range(-(-new // PAGE)))]
        for slot in (*range(MAX_ROWS), *PROMPT_SLOTS):
            fed = () if slot in PROMPT_SLOTS else (draw.randrange(200_000),)
            sampling = SamplingParams(temperature=1.0, seed=slot)
            self.engine.bind(Binding(slot, (1,), fed, sampling, StopRule(1 << 20)))
        self._at = [self._start + MOST_STEPS] * MAX_ROWS

    def divide(self, shares: tuple[float, ...]) -> Overlap:
        """Divide the GPU again, with each of ``shares`` of it for steps."""
        gpu, parts = DividedGpu.of(0, shares), self.engine._cuda
        assert parts is not None, "a GPU without Triton kernels"
        graphs = DecodeGraphs(
            replace(parts._trunk, divided=gpu), self.engine._sampler.next_token, parts._logits,
            buckets=(1, 8, MAX_ROWS),
        )  # fmt: skip
        with most_shared_memory():
            graphs.capture()
        self.engine._graphs, self.engine.overlap = graphs, Overlap(gpu)
        return self.engine.overlap

    def step(self, num_rows: int) -> Step:
        rows = []
        for slot in range(num_rows):
            self._at[slot] += 1
            if self._at[slot] >= self._start + MOST_STEPS:
                self._at[slot] = self._start
                self.engine.restore(slot, slot, self._start)
            rows.append(Row(slot, self._tables[slot], self._at[slot], None))
        return self.engine.launch(ForwardBatch(tuple(rows)))

    def prompt(self, slot: int) -> ForwardBatch:
        start = len(self._shared) * PAGE
        self.engine.restore(slot, slot, start)
        return ForwardBatch((Row(slot, self._table, start, self._prompt),))

    def step_ms(self, num_rows: int, num_steps: int = 12) -> float:
        """ms of a step on the whole GPU."""
        self.step(num_rows).result()
        began, under_way = time.perf_counter(), deque[Step]()
        for _ in range(num_steps):
            under_way.append(self.step(num_rows))
            if len(under_way) > 1:
                under_way.popleft().result()
        under_way.pop().result()
        return 1e3 * (time.perf_counter() - began) / num_steps

    def prompt_ms(self) -> float:
        """ms of a prompt on the whole GPU."""
        self.engine.launch(self.prompt(PROMPT_SLOTS[0])).result()
        began = time.perf_counter()
        self.engine.launch(self.prompt(PROMPT_SLOTS[0])).result()
        return 1e3 * (time.perf_counter() - began)

    def together(self, share: int, num_rows: int, num_prompts: int) -> dict[str, float]:
        """Compute prompts one behind the other, and steps beside them, as a worker does."""
        gaps, first = list[float](), self.prompt(PROMPT_SLOTS[0])
        batches = deque([self.engine.overlapped(first, share)])
        steps, num_begun, num_done = deque([self.step(num_rows)]), 1, 0
        began = last = time.perf_counter()
        while num_done < num_prompts:
            steps.append(self.step(num_rows))
            steps.popleft().result()
            last, before = time.perf_counter(), last
            gaps.append(1e3 * (last - before))
            if num_begun < num_prompts and len(batches) < 2:
                prompt = self.prompt(PROMPT_SLOTS[num_begun % 2])
                batches.append(self.engine.overlapped(prompt, share))
                num_begun += 1
            for batch in batches:
                if not batch.enqueued:
                    batch.enqueue(ENQUEUE_SHARE * gaps[-1] / 1e3)
                    break
            if batches[0].done:
                batches.popleft().result()
                num_done += 1
        took_ms = 1e3 * (time.perf_counter() - began)
        steps.pop().result()
        return {
            "prompt_ms": took_ms / num_prompts,
            "steps": len(gaps) / num_prompts,
            "step_p50_ms": median(gaps),
            "step_max_ms": max(gaps),
        }


def main(
    out: Annotated[Path, typer.Option(help="Result file.")],
    model: Annotated[Path, typer.Option(help="Checkpoint folder or config.")] = FULL_SIZE,
    quantize: Annotated[str, typer.Option(help="none, or fp8.")] = "fp8",
    shared: Annotated[int, typer.Option(help="Tokens of context, a multiple of 64.")] = 64_000,
    new: Annotated[int, typer.Option(help="Tokens of each prompt behind it.")] = 6_784,
    shares: Annotated[str, typer.Option(help="Of the steps.")] = ",".join(map(str, STEPS_SHARES)),
    rows: Annotated[str, typer.Option(help="Sequences, at most 32.")] = "32,8,1",
) -> None:
    settings = {"quantize": quantize, "shared": shared, "new": new}
    run = Recording("bench.overlap", out, settings)
    sequences = Sequences(model, quantize, shared, new)
    sizes = int_list("--rows", rows)
    prompt_ms = sequences.prompt_ms()
    alone = {size: sequences.step_ms(size) for size in sizes}
    print(f"alone: a prompt {prompt_ms:.1f} ms, steps {alone} ms")
    run.results |= {"prompt_ms": prompt_ms, "step_ms": alone, "together": []}
    overlap = sequences.divide(tuple(map(float, shares.split(","))))
    for share in overlap.shares:
        for size in sizes:
            sequences.together(share, size, 1)
            row = sequences.together(share, size, PROMPTS)
            gain = (prompt_ms + row["steps"] * alone[size]) / row["prompt_ms"]
            parts = {"steps_part": share, "prompts_part": overlap.total - share}
            found = {**parts, "rows": size, **row, "gain": gain}
            run.results["together"].append(found)
            print(found, flush=True)
    run.end()


if __name__ == "__main__":
    typer.run(main)
