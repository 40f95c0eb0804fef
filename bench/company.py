"""``python -m bench.company``: does a request's text depend on who shares its steps?

Greedy, full size, random weights. Some requests run alone, then among others, and their tokens are
compared. Prompts are computed packed with the others' or a pass each (BATON_MAX_BATCH_ROWS=1), and
decode steps hold one sequence or all: so a difference can be laid at one door. Random weights are
the hard case: their margins are narrow. Also shown: what a pass for each prompt costs.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench.step import FULL_SIZE, gpu_environment
from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig
from engine.runner import Engine
from transport.copy.memory import own_memory
from transport.wire.sampling import SamplingParams, StopRule

PAGE = 64


class Requests:
    """Greedy requests on one engine, a state slot each."""

    def __init__(self, engine: Engine, prompts: list[tuple[int, ...]], output_len: int) -> None:
        self._engine, self._prompts, self._output_len = engine, prompts, output_len
        self._pages_each = -(-(max(map(len, prompts)) + output_len) // PAGE)
        self.prefill_s = 0.0

    def run(self, which: list[int], *, packed: bool) -> dict[int, list[int]]:
        """Tokens of the requests ``which``, decoded together, by request."""
        for slot in which:
            greedy = SamplingParams(temperature=0.0)
            self._engine.bind(Binding(slot, self._prompts[slot], (), greedy, StopRule(1 << 20)))
        tokens: dict[int, list[int]] = {slot: [] for slot in which}
        groups = [which[i : i + 16] for i in range(0, len(which), 16)]
        torch.cuda.synchronize()
        began = time.perf_counter()
        for group in groups if packed else [[slot] for slot in which]:
            self._step([self._row(slot, 0, self._prompts[slot]) for slot in group], tokens)
        self.prefill_s = time.perf_counter() - began
        for step in range(self._output_len - 1):
            rows = [self._row(s, len(self._prompts[s]) + step, None) for s in which]
            self._step(rows, tokens)
        return tokens

    def _step(self, rows: list[Row], tokens: dict[int, list[int]]) -> None:
        sampled = self._engine.launch(ForwardBatch(tuple(rows))).result().sampled
        for row, outcome in zip(rows, sampled, strict=True):
            assert outcome is not None
            assert outcome.token_id is not None, "NaN"
            tokens[row.state_slot].append(outcome.token_id)

    def _row(self, slot: int, start: int, tokens: tuple[int, ...] | None) -> Row:
        first = slot * self._pages_each
        return Row(slot, tuple(range(first, first + self._pages_each)), start, tokens)


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder or config.")] = FULL_SIZE,
    requests: Annotated[int, typer.Option(help="Requests at once.")] = 64,
    alone: Annotated[int, typer.Option(help="Of which so many are also run alone.")] = 16,
    input_len: int = 1024,
    output_len: int = 256,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("bench/results/company.json"),
    commit: Annotated[str, typer.Option(help="Where the code is not a git checkout.")] = "",
) -> None:
    config = EngineConfig(
        model_dir=model,
        load_format="dummy",
        device="cuda",
        num_pages=requests * -(-(input_len + output_len) // PAGE),
        num_state_slots=requests,
    )
    engine = Engine.load(config, own_memory("cuda", "bench").allocate)
    generator = torch.Generator().manual_seed(0)
    shape = (requests, input_len)
    prompts = torch.randint(0, engine.num_ids, shape, generator=generator).tolist()
    asked = Requests(engine, [tuple(prompt) for prompt in prompts], output_len)
    everyone, some = list(range(requests)), list(range(alone))
    asked.run(everyone, packed=True)  # compiles
    single: dict[int, list[int]] = {}
    for slot in some:
        single |= asked.run([slot], packed=True)
    results: dict[str, Any] = {}
    for name, packed in (("packed", True), ("a pass each", False)):
        together = asked.run(everyone, packed=packed)
        results[f"prompts {name}"] = {
            "prefill_s": round(asked.prefill_s, 3),
            **compare([single[slot] for slot in some], [together[slot] for slot in some]),
        }
    report = {
        "environment": gpu_environment("bench.company", commit),
        "requests": requests,
        "compared": alone,
        "input_len": input_len,
        "output_len": output_len,
        "among_others": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(results, indent=1))


def compare(theirs: list[list[int]], ours: list[list[int]]) -> dict[str, Any]:
    """How many texts differ, and where the first differing token stands."""
    firsts = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), None)
        for x, y in zip(theirs, ours, strict=True)
    ]
    differing = [first for first in firsts if first is not None]
    return {"texts": len(firsts), "differing": len(differing), "first_differences": differing}


if __name__ == "__main__":
    typer.run(main)
