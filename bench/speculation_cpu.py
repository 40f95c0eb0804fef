"""``python -m bench.speculation_cpu``: tokens a second with and without drafts, on one CPU thread.

The bundled model answers its held-out problems greedily, so that the acceptance is real. Engines
are measured in turn, each several times, and the median counts.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import Tokenizer

from bench.environment import describe
from coordinator.text.chat_template import ChatTemplate
from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig
from engine.runner import Engine
from transport.wire.sampling import SamplingParams, StopRule

MODEL = Path("models/tiny")
PROBLEMS = Path("models/heldout.jsonl")
PAGES_EACH = 8


def prompts(num: int) -> list[tuple[int, ...]]:
    """The first held-out problems, as chats."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    template = ChatTemplate.read(MODEL)
    assert template is not None, "the bundled model has a template"
    lines = PROBLEMS.read_text().splitlines()[:num]
    chats = [[{"role": "user", "content": json.loads(line)["question"]}] for line in lines]
    texts = [template.render(chat) for chat in chats]
    return [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]


class Run:
    """One engine, whose decode steps make ``num_drafts`` each; None: it has no draft layer."""

    def __init__(self, num_drafts: int | None, batch: int) -> None:
        self.num_drafts, self.batch = num_drafts, batch
        config = EngineConfig(
            MODEL, batch * PAGES_EACH, batch, max_drafts=num_drafts or int(num_drafts is not None)
        )
        self._engine = Engine.load(config, lambda n: torch.zeros(n, dtype=torch.uint8))
        self.rates: list[float] = []
        self.tokens_a_step = 0.0

    def measure(self, every: list[tuple[int, ...]], eos: int) -> None:
        """Decode all prompts, ``batch`` at a time, each until its answer ends."""
        seconds = tokens = steps = 0.0
        for first in range(0, len(every), self.batch):
            group = every[first : first + self.batch]
            answers = self._prefill(group)
            running = list(range(len(group)))
            began = time.perf_counter()
            while running:
                rows = tuple(self._row(slot, group[slot], answers[slot]) for slot in running)
                result = self._engine.launch(ForwardBatch(rows, self.num_drafts or 0)).result()
                steps += len(running)
                for slot, outcomes in zip(running, result.sampled, strict=True):
                    new = [outcome.token_id or 0 for outcome in outcomes]
                    # What a step gives behind the end of an answer is not sent to a client.
                    new = new[: new.index(eos) + 1] if eos in new else new
                    answers[slot] += new
                    tokens += len(new)
                running = [s for s in running if eos not in answers[s] and len(answers[s]) < 200]
            seconds += time.perf_counter() - began
        self.rates.append(tokens / seconds)
        self.tokens_a_step = tokens / steps

    def _prefill(self, group: list[tuple[int, ...]]) -> list[list[int]]:
        greedy = SamplingParams(temperature=0.0)
        for slot, prompt in enumerate(group):
            self._engine.bind(Binding(slot, prompt, (), greedy, StopRule(1 << 20)))
        rows = tuple(Row(slot, self._pages(slot), 0, prompt) for slot, prompt in enumerate(group))
        sampled = self._engine.launch(ForwardBatch(rows)).result().sampled
        return [[outcome.token_id or 0] for (outcome,) in sampled]

    def _row(self, slot: int, prompt: tuple[int, ...], answer: list[int]) -> Row:
        start = len(prompt) + len(answer) - 1
        return Row(slot, self._pages(slot), start, None, num_drafts=self.num_drafts or 0)

    @staticmethod
    def _pages(slot: int) -> tuple[int, ...]:
        return tuple(range(slot * PAGES_EACH, (slot + 1) * PAGES_EACH))


def main(
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,2,4,8,16",
    num_problems: int = 16,
    rounds: int = 5,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("bench/results/cpu-drafts.json"),
) -> None:
    torch.set_num_threads(1)
    every = prompts(num_problems)
    eos = json.loads((MODEL / "config.json").read_text())["eos_token_id"]
    results: list[dict[str, Any]] = []
    print("batch     K  tokens a step    tok/s  x off  step x off")
    for batch in map(int, batches.split(",")):
        runs = [Run(num, batch) for num in (None, 0, 1, 2, 3, 4)]
        for _ in range(rounds):
            for run in runs:
                run.measure(every, eos)
        plain = statistics.median(runs[0].rates)
        for run in runs:
            rate = statistics.median(run.rates)
            row = {
                "batch": batch,
                "drafts": "off" if run.num_drafts is None else run.num_drafts,
                "tokens_a_step": round(run.tokens_a_step, 3),
                "tokens_per_s": round(rate, 1),
                "times_off": round(rate / plain, 3),
                "step_times_off": round(plain / rate * run.tokens_a_step, 3),
            }
            results.append(row)
            print("{:5} {!s:>5} {:14} {:8} {:6} {:11}".format(*row.values()), flush=True)
    report = {"environment": describe([], "bench.speculation_cpu"), "steps": results}
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
