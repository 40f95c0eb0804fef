"""One member of ``python -m bench.spread_step`` whose steps verify drafts: a worker's engine. With
a context, sequences begin behind so many tokens of random caches, and steps are timed.

Drafts are accepted by lot, the same in every run, since those of a random model never are.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.spread_member import PAGE_SIZE, WARM_STEPS, mean_us, serve
from engine.batch import Binding, ForwardBatch, Row, SpreadPlan
from engine.config import DECODE_BUCKETS, EngineConfig
from engine.draft_graphs import DraftGraphs
from engine.runner import Engine
from engine.spread.engine_steps import EngineSpread, SpreadStep
from engine.spread.outcome import Waited
from engine.spread.shapes import group_size, shape_for
from engine.step import Step
from transport.wire.sampling import Constraint, SamplingParams, StopRule
from transport.wire.spread import ExchangeExport

MAX_DRAFTS, ACCEPTED = 3, 0.7
PROMPT_LEN, GROWTH = 70, 192
"""Tokens of a prompt, and room for those that follow: of 16 timed steps with drafts about 90."""


class Run(NamedTuple):
    """Of some steps: the tokens of each, logits of the tokens that were verified, and the states
    behind a last local step."""

    tokens: list[list[list[int]]]
    logits: list[torch.Tensor]
    states: list[torch.Tensor]


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
        torch.cuda.set_device(device)
        began = time.perf_counter()
        self.context = context or PROMPT_LEN
        self.pages_each = -(-(context + GROWTH) // PAGE_SIZE)
        config = EngineConfig(
            model_dir, self.pages_each * max_rows, max_rows, load_format="dummy", device="cuda",
            max_drafts=MAX_DRAFTS, spread=True, prefills=not context,
            # Graphs of no other group are captured, and of no other batches where steps are timed.
            decode_buckets=tuple(buckets) if context else DECODE_BUCKETS,
            group_sizes=(group_size(num_members),),
        )  # fmt: skip
        self.engine = engine = Engine.load(
            config, lambda size: torch.zeros(size, dtype=torch.uint8, device="cuda")
        )
        assert isinstance(engine._drafts, DraftGraphs)
        assert isinstance(engine.spread, EngineSpread)
        self.drafts, self.spread = engine._drafts, engine.spread
        self.drafts.accept_by_lot(ACCEPTED)
        self.spread.steps.limit_s = limit_s
        self.handles = {"handle": self.spread.export.handle, "lending": ""}
        self.took_s = time.perf_counter() - began
        self.place = self.generation = self.round = 0
        self.num_members = num_members
        self.truth = Run([], [], [])
        if context:
            engine.cache.kv.normal_()

    def capture(self, num_members: int) -> dict[str, Any]:
        """All is captured when the engine is loaded."""
        return {"both_s": self.took_s}

    def join(self, generation: int, place: int, handles: Sequence[str]) -> dict[str, Any]:
        own = self.spread.export
        exports = [ExchangeExport(own.kind, handle, own.size_bytes) for handle in handles]
        self.spread.join(generation, place, exports, 0)
        self.generation, self.place, self.round = generation, place, 0
        return {}

    def drafts_time(self, mode: str, live: int, num_drafts: int, steps: int) -> dict[str, Any]:
        """ms of a step with so many drafts of each of ``live`` sequences, the same of all members,
        one behind the other, and us that the device waited for each member in it."""
        self._begin_behind_context(live)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before: Step | None = None
        waited: list[Waited] = []
        torch.cuda.synchronize()
        for i in range(WARM_STEPS + steps):
            if i == WARM_STEPS:
                began.record()
            step = self._timed(mode, live, num_drafts, first=before is None)
            if before is not None:
                waited.append(self._waited(before))
            before = step
        ended.record()
        assert before is not None
        waited.append(self._waited(before))
        ended.synchronize()
        ms = began.elapsed_time(ended) / steps
        return {"ms": ms, "waited_us": mean_us(waited[WARM_STEPS:], self.num_members)}

    def _begin_behind_context(self, live: int) -> None:
        for slot in range(live):
            sampling = SamplingParams(temperature=1.0, seed=slot + 1000 * self.place)
            self.engine.bind(
                Binding(slot, (1,) * self.context, (7 + slot,), sampling, StopRule(9999))
            )

    def _timed(self, mode: str, live: int, num_drafts: int, *, first: bool) -> Step:
        rows = [
            Row(slot, self._pages(slot), self.context, None, num_drafts=num_drafts)
            for slot in range(live)
        ]
        batch = ForwardBatch(tuple(rows), num_drafts)
        if mode == "local":
            return self.engine.launch(batch)
        self.round += 1
        shape = shape_for(self.spread.shapes, live, num_drafts)
        assert shape.num_drafts == num_drafts, "a case that the exchange has no room for"
        plan = SpreadPlan(self.generation, self.round, shape.bucket, first, shape.num_drafts)
        return self.spread.launch(batch, plan)

    def _waited(self, step: Step) -> Waited:
        """Of a step that is now read."""
        if isinstance(step, SpreadStep):
            result = step.result()
            assert not result.aborted, result.late
            return self.spread.steps.waited
        step.result()
        return Waited((0.0,) * self.num_members, (0.0,) * self.num_members)

    def drafts_truth(self, live: int, num_drafts: Sequence[int]) -> dict[str, Any]:
        """Take local steps with these numbers of drafts, one after another: what follows is
        compared with them. All members begin that at the same time."""
        self.truth = self._run(live, live, num_drafts, spread=False)
        return {}

    def drafts_bits(self, live: int, most: int, num_drafts: Sequence[int]) -> dict[str, Any]:
        """Whether spread steps give the same; ``most`` is the largest member's ``live``."""
        return self._compared(self._run(live, most, num_drafts, spread=True))

    def drafts_stall(self, launches: bool, live: int, num_drafts: Sequence[int]) -> dict[str, Any]:
        """Whether local steps give the same, with two spread ones behind the first of them that not
        all members launch."""
        if not launches:
            return {}
        wanted = num_drafts
        self._begin(live)
        tokens, logits, read = [self._take(self._local(live, wanted, 0))], list[torch.Tensor](), []
        logits.append(self._logits(live, 0, 0))
        torch.cuda.synchronize()
        began = time.perf_counter()
        steps = [self._spread(live, live, wanted, 1, first=not i) for i in range(2)]
        for step in steps:
            result = step.result()
            read.append([result.aborted, list(result.late)])
        took_ms = 1e3 * (time.perf_counter() - began)
        for i in range(1, len(wanted)):
            tokens.append(self._take(self._local(live, wanted, i)))
            logits.append(self._logits(live, wanted[i], i))
        return self._compared(Run(tokens, logits, self._states(live))) | {
            "ms": took_ms, "read": read,
        }  # fmt: skip

    def _run(self, live: int, most: int, num_drafts: Sequence[int], *, spread: bool) -> Run:
        self._begin(live)
        tokens, logits = [], []
        for i in range(len(num_drafts)):
            if spread:
                step = self._spread(live, most, num_drafts, i, first=not i)
            elif live:
                step = self._local(live, num_drafts, i)
            else:
                continue
            tokens.append(self._take(step))
            logits.append(self._logits(live, num_drafts[i], i))
        return Run(tokens if live else [], logits if live else [], self._states(live))

    def _begin(self, live: int) -> None:
        """Prompts anew; every other sequence is sampled greedily, and every third one has penalties
        or a constraint."""
        rows, self._lengths = [], [PROMPT_LEN] * live
        for slot in range(live):
            prompt = [(7 * i + 31 * slot + 101 * self.place) % 1000 for i in range(PROMPT_LEN)]
            self.engine.bind(Binding(slot, prompt, (), _sampling(slot), StopRule(999)))
            rows.append(Row(slot, self._pages(slot), 0, tuple(prompt)))
        if rows:
            self.engine.launch(ForwardBatch(tuple(rows))).result()

    def _local(self, live: int, num_drafts: Sequence[int], i: int) -> Step:
        return self.engine.launch(self._batch(live, num_drafts, i))

    def _spread(
        self, live: int, most: int, num_drafts: Sequence[int], i: int, *, first: bool
    ) -> Step:
        self.round += 1
        shape = shape_for(self.spread.shapes, most, num_drafts[i])
        assert shape.num_drafts == num_drafts[i], "a case that the exchange has no room for"
        plan = SpreadPlan(self.generation, self.round, shape.bucket, first, shape.num_drafts)
        return self.spread.launch(self._batch(live, num_drafts, i), plan)

    def _batch(self, live: int, num_drafts: Sequence[int], i: int) -> ForwardBatch:
        """Step ``i``. The next one's drafts are made in it."""
        rows = (
            Row(slot, self._pages(slot), self._lengths[slot], None, num_drafts=wanted)
            for slot, wanted in enumerate(_wanted(live, num_drafts[i], i))
        )
        return ForwardBatch(tuple(rows), [*num_drafts, 0][i + 1])

    def _take(self, step: Step) -> list[list[int]]:
        result = step.result()
        assert not result.aborted, result.late
        tokens = [[each.token_id or 0 for each in row] for row in result.sampled]
        for slot, row in enumerate(tokens):
            self._lengths[slot] += len(row)
        return tokens

    def _logits(self, live: int, num_drafts: int, i: int) -> torch.Tensor:
        """Of the tokens that the step launched last has sampled."""
        index = [
            slot * (num_drafts + 1) + place
            for slot, wanted in enumerate(_wanted(live, num_drafts, i))
            for place in range(wanted + 1)
        ]
        return self.drafts.logits[index].clone()

    def _pages(self, slot: int) -> tuple[int, ...]:
        return tuple(range(slot * self.pages_each, (slot + 1) * self.pages_each))

    def _states(self, live: int) -> list[torch.Tensor]:
        if not live:
            return []
        self.engine.launch(self._batch(live, [0], 0)).result()
        cache = self.engine.cache
        return [cache.conv[:live].clone(), cache.recurrent[:live].clone()]

    def _compared(self, found: Run) -> dict[str, Any]:
        truth = self.truth
        pairs = [
            *zip(truth.logits, found.logits, strict=True),
            *zip(truth.states, found.states, strict=True),
        ]
        different = [int((ours != expected).sum()) for expected, ours in pairs]
        equal = truth.tokens == found.tokens and not any(different)
        return {
            "equal": equal,
            "different": different,
            "same_tokens": truth.tokens == found.tokens,
            "finite": all(bool(logits.isfinite().all()) for logits in truth.logits),
            "num_accepted": sum(len(row) - 1 for step in found.tokens for row in step),
        }


def _sampling(slot: int) -> SamplingParams:
    temperature = 0.8 * (slot % 2)
    if slot % 3 == 0:
        return SamplingParams(temperature, seed=slot, presence_penalty=2, repetition_penalty=1.5)
    # NOTE: nothing may be forced of a sequence whose drafts are accepted by lot.
    thought = Constraint("", thought_end=9) if slot % 3 == 1 else None
    return SamplingParams(temperature, seed=slot, logprobs=1, constraint=thought)


def _wanted(live: int, num_drafts: int, i: int) -> list[int]:
    """The first sequence has all drafts, others have fewer."""
    return [max(0, num_drafts - (slot + i) % 3 * bool(slot)) for slot in range(live)]


if __name__ == "__main__":
    serve(DraftMember)
