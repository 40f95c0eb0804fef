"""One member of ``python -m bench.spread_step``: an engine on one GPU, told what to run
(bench/processes.py). With a context, timed sequences begin behind so many tokens of random
caches."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.processes import Commands, serve
from bench.spread.bits import Bits
from bench.spread.engine import PROMPT_LEN, MemberEngine, load, pages_each
from bench.timed_steps import WARM_STEPS, mean_us, step_ms
from engine.batch import Binding, ForwardBatch, Row
from engine.spread.engine_steps import SpreadStep
from engine.spread.outcome import Waited
from engine.step import Step
from transport.wire.sampling import SamplingParams, StopRule


class Member:
    """The model with random weights, the same on all members, and prompts of its own."""

    def __init__(
        self,
        device: int,
        model_dir: Path,
        buckets: Sequence[int],
        max_drafts: int,
        num_members: int,
        context: int,
        limit_s: float,
    ) -> None:
        began = time.perf_counter()
        engine = load(device, model_dir, buckets, max_drafts, num_members, context)
        self._engine = MemberEngine(engine, pages_each(context), limit_s)
        self._context = context or PROMPT_LEN
        self._bits = Bits(self._engine)
        self._load_s = time.perf_counter() - began

    @property
    def loaded(self) -> dict[str, Any]:
        return {"handle": self._engine.handle, "load_s": self._load_s}

    @property
    def commands(self) -> Commands:
        return {
            "join": self.join,
            "truth": self._bits.truth,
            "bits": self._bits.bits,
            "stall": self._bits.stall,
            "time": self.time,
            "lend": self.lend,
        }

    def join(
        self, generation: int, place: int, handles: Sequence[str], num_lenders: int
    ) -> dict[str, Any]:
        self._engine.join(generation, place, handles, num_lenders)
        return {}

    def time(self, mode: str, live: int, most: int, num_drafts: int, steps: int) -> dict[str, Any]:
        """ms of a step of ``live`` sequences with so many drafts each, one step behind the other,
        and µs that the device waited for each member in it. ``most``: sequences of the largest
        member."""
        self._begin(live)
        ahead = _Ahead(self._launch(mode, live, most, num_drafts))
        ms = step_ms(ahead, steps)
        ahead.read()
        return {"ms": ms, "waited_us": mean_us(ahead.waited[WARM_STEPS:], self._engine.num_members)}

    def lend(self, lends: bool, live: int, steps: int) -> dict[str, Any]:
        """Bits and time of steps that the last member lends to; ``came``: to how many."""
        if lends:
            return {"came": self._engine.lend(live, WARM_STEPS + 2 * steps)}
        found = self._bits.bits(live, live, [0] * steps)
        return found | self.time("spread", live, live, 0, steps)

    def _begin(self, live: int) -> None:
        """Bind sequences behind their contexts."""
        for slot in range(live):
            sampling = SamplingParams(temperature=1.0, seed=slot + 1000 * self._engine.place)
            self._engine.engine.bind(
                Binding(slot, (1,) * self._context, (7 + slot,), sampling, StopRule(9999))
            )

    def _launch(
        self, mode: str, live: int, most: int, num_drafts: int
    ) -> Callable[[int], Step | None]:
        """What enqueues the step of a number; None: a local step of no sequences."""

        def launch(i: int) -> Step | None:
            rows = tuple(
                Row(slot, self._engine.pages(slot), self._context + i, None, num_drafts=num_drafts)
                for slot in range(live)
            )
            batch = ForwardBatch(rows, num_drafts)
            if mode == "spread":
                return self._engine.launch_spread(batch, most, num_drafts, first=not i)
            return self._engine.engine.launch(batch) if rows else None

        return launch


class _Ahead:
    """Launches steps, each before the one before it is read, as a worker does. ``waited``: how long
    the steps that were read waited for each member."""

    def __init__(self, launch: Callable[[int], Step | None]) -> None:
        self.waited: list[Waited] = []
        self._launch = launch
        self._before: Step | None = None

    def __call__(self, i: int) -> None:
        step = self._launch(i)
        self.read()
        self._before = step

    def read(self) -> None:
        """Read the step that was launched last."""
        step, self._before = self._before, None
        if step is None:
            return
        result = step.result()
        if isinstance(step, SpreadStep):
            assert not result.aborted, result.late
            self.waited.append(step.steps.waited)


if __name__ == "__main__":
    serve(Member)
