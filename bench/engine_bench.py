"""An engine with random weights on one GPU, driven as workers drive it, with all sequences in
step. The benchmarks of steps share it."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from llguidance import LLMatcher

from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig, Quantize
from engine.runner import Engine
from engine.step import Step
from transport.copy.memory import own_memory
from transport.wire.sampling import Constraint, SamplingParams, StopRule

FULL_SIZE = Path("bench/models/qwen3.5-35b-a3b")
WARM_STEPS = 8
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


def load(
    model: Path, num_pages: int, num_state_slots: int, quantize: str = "none", **settings: Any
) -> Engine:
    """An engine with random weights. ``settings``: more fields of its EngineConfig."""
    config = EngineConfig(
        model, num_pages, num_state_slots, load_format="dummy", device="cuda",
        quantize=cast(Quantize, quantize), **settings,
    )  # fmt: skip
    return Engine.load(config, own_memory("cuda", "bench").allocate)


@dataclass(frozen=True)
class Run:
    """``batch`` sequences with prompts of ``input_len`` tokens, and ``pages_each``."""

    batch: int
    input_len: int
    pages_each: int


class Decoded(NamedTuple):
    """Means of timed steps: seconds per step, and seconds in which the host worked."""

    step_s: float
    host_s: float


class Bench:
    """Computes the prompts of a run, and then decodes all its sequences in step. The first
    ``num_constrained`` of them follow a JSON schema."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.num_constrained = 0
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
        run = Run(1, length, pages_each)
        seconds = [self.prefill(run, max(length, 16_384)) for _ in range(8)]
        return round(1e3 * statistics.median(seconds[1:]), 2)

    def decode(self, run: Run, num_steps: int, num_warm: int = WARM_STEPS) -> Decoded:
        """Time ``num_steps`` steps behind the prompts and ``num_warm`` others, without drafts. The
        host is a step ahead."""
        pending: Step | None = None
        began, waited = time.perf_counter(), 0.0
        for step in range(num_warm + num_steps):
            if step == num_warm:
                if pending is not None:
                    _process(pending)
                torch.cuda.synchronize()
                pending, began, waited = None, time.perf_counter(), 0.0
            start = run.input_len + step
            rows = tuple(self._row(run, slot, start, None) for slot in range(run.batch))
            launched = self._engine.launch(ForwardBatch(rows))
            if pending is not None:
                blocked_at = time.perf_counter()
                pending.wait()
                waited += time.perf_counter() - blocked_at
                _process(pending)
            pending = launched
        assert pending is not None, "no steps"
        _process(pending)
        seconds = time.perf_counter() - began
        return Decoded(seconds / num_steps, (seconds - waited) / num_steps)

    def _bind(self, slot: int, prompt: tuple[int, ...]) -> None:
        constraint = CONSTRAINT if slot < self.num_constrained else None
        sampling = SamplingParams(temperature=1.0, seed=slot, constraint=constraint)
        self._engine.bind(Binding(slot, prompt, (), sampling, StopRule(1 << 20)))

    def _row(self, run: Run, slot: int, start: int, tokens: tuple[int, ...] | None) -> Row:
        pages = tuple(range(slot * run.pages_each, (slot + 1) * run.pages_each))
        last = tokens is None or start + len(tokens) == run.input_len
        return Row(slot, pages, start, tokens, sample=last)


def _process(step: Step) -> None:
    """Wait for a step's result, which must have a token for each row."""
    assert all(s.token_id is not None for each in step.result().sampled for s in each), "NaN"
