"""One member of ``python -m bench.spread_step`` whose steps verify drafts, told what to run
(bench/spread_commands.py). With a context, sequences begin behind so many tokens of random caches,
and steps are timed."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.spread_commands import Commands, serve
from bench.spread_draft_bits import DraftBits
from bench.spread_draft_engine import PROMPT_LEN, DraftEngine, load, pages_each
from bench.timed_steps import WARM_STEPS, mean_us, step_ms
from engine.batch import Binding, ForwardBatch, Row
from engine.spread.engine_steps import SpreadStep
from engine.spread.outcome import Waited
from engine.step import Step
from transport.wire.sampling import SamplingParams, StopRule


class DraftMember:
    """The model with random weights, the same on all members, and prompts of its own."""

    def __init__(
        self,
        device: int,
        model_dir: Path,
        max_rows: int,
        buckets: Sequence[int],
        limit_s: float,
        num_members: int,
        context: int = 0,
    ) -> None:
        began = time.perf_counter()
        engine = load(device, model_dir, max_rows, buckets, num_members, context)
        self._context = context or PROMPT_LEN
        self._engine = DraftEngine(engine, num_members, pages_each(context), limit_s)
        self._bits = DraftBits(self._engine)
        self._took_s = time.perf_counter() - began

    @property
    def handles(self) -> dict[str, Any]:
        return {"handle": self._engine.handle, "lending": ""}

    @property
    def commands(self) -> Commands:
        return {
            "capture": self.capture,
            "join": self._engine.join,
            "drafts_time": self.time,
            "drafts_truth": self._bits.truth,
            "drafts_bits": self._bits.bits,
            "drafts_stall": self._bits.stall,
        }

    def capture(self, num_members: int) -> dict[str, Any]:
        """All is captured when the engine is loaded."""
        return {"both_s": self._took_s}

    def time(self, mode: str, live: int, num_drafts: int, steps: int) -> dict[str, Any]:
        """ms of a step with so many drafts of each of ``live`` sequences, the same of all members,
        one behind the other, and us that the device waited for each member in it."""
        self._begin(live)
        before: Step | None = None
        waited: list[Waited] = []

        def launch(_: int) -> None:
            """The host is a step ahead, as a worker is."""
            nonlocal before
            step = self._launch(mode, live, num_drafts, first=before is None)
            if before is not None:
                waited.append(self._waited(before))
            before = step

        ms = step_ms(launch, steps)
        assert before is not None
        waited.append(self._waited(before))
        waited_us = mean_us(waited[WARM_STEPS:], self._engine.num_members)
        return {"ms": ms, "waited_us": waited_us}

    def _begin(self, live: int) -> None:
        """Sequences behind their contexts."""
        for slot in range(live):
            seed = slot + 1000 * self._engine.place
            sampling = SamplingParams(temperature=1.0, seed=seed)
            self._engine.engine.bind(
                Binding(slot, (1,) * self._context, (7 + slot,), sampling, StopRule(9999))
            )

    def _launch(self, mode: str, live: int, num_drafts: int, *, first: bool) -> Step:
        rows = [
            Row(slot, self._engine.pages(slot), self._context, None, num_drafts=num_drafts)
            for slot in range(live)
        ]
        batch = ForwardBatch(tuple(rows), num_drafts)
        if mode == "local":
            return self._engine.engine.launch(batch)
        return self._engine.launch_spread(batch, live, num_drafts, first=first)

    def _waited(self, step: Step) -> Waited:
        """Read a step, and return how long it waited for each member."""
        result = step.result()
        if isinstance(step, SpreadStep):
            assert not result.aborted, result.late
            return self._engine.spread.steps.waited
        num_members = self._engine.num_members
        return Waited((0.0,) * num_members, (0.0,) * num_members)


if __name__ == "__main__":
    serve(DraftMember)
