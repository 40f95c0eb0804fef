"""One member of ``python -m bench.spread_step`` whose steps verify drafts: a worker's engine.

Drafts are accepted by lot, the same in every run, since those of a random model never are.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.spread_member import serve
from engine.batch import Binding, ForwardBatch, Row, SpreadPlan
from engine.config import EngineConfig
from engine.draft_graphs import DraftGraphs
from engine.runner import Engine
from engine.spread.engine_steps import EngineSpread
from engine.spread.shapes import shape_for
from engine.step import Step
from transport.wire.sampling import Constraint, SamplingParams, StopRule
from transport.wire.spread import ExchangeExport

MAX_DRAFTS, ACCEPTED = 3, 0.7
PAGES_EACH, PROMPT_LEN = 3, 70


class Run(NamedTuple):
    """Of some steps: the tokens of each, logits of the tokens that were verified, and the states
    behind a last local step."""

    tokens: list[list[list[int]]]
    logits: list[torch.Tensor]
    states: list[torch.Tensor]


class DraftMember:
    """The model with random weights, the same on all members, and prompts of its own."""

    def __init__(
        self, device: int, model_dir: Path, max_rows: int, buckets: Sequence[int], limit_s: float
    ) -> None:
        torch.cuda.set_device(device)
        began = time.perf_counter()
        config = EngineConfig(
            model_dir, PAGES_EACH * max_rows, max_rows, load_format="dummy", device="cuda",
            max_drafts=MAX_DRAFTS, spread=True,
        )  # fmt: skip
        self.engine = engine = Engine.load(
            config, lambda size: torch.zeros(size, dtype=torch.uint8, device="cuda")
        )
        assert isinstance(engine._drafts, DraftGraphs)
        assert isinstance(engine.spread, EngineSpread)
        self.drafts, self.spread = engine._drafts, engine.spread
        self._accept_by_lot()
        self.spread.steps.limit_s = limit_s
        self.handles = {"handle": self.spread.export.handle, "lending": ""}
        self.took_s = time.perf_counter() - began
        self.place = self.generation = self.round = 0
        self.truth = Run([], [], [])

    @torch.inference_mode()
    def _accept_by_lot(self) -> None:
        """With the kernel for that compiled: who compiles within a step is late."""
        drafts = self.drafts
        drafts.forced = ACCEPTED
        drafts._write_step(1, (), [])
        for aborted in (None, torch.zeros(1, dtype=torch.int32, device="cuda")):
            for num_drafts in range(MAX_DRAFTS + 1):
                drafts._accept(1, num_drafts, drafts._memory.verified.ids, aborted)

    def capture(self, num_members: int) -> dict[str, Any]:
        """All is captured when the engine is loaded."""
        return {"both_s": self.took_s}

    def join(self, generation: int, place: int, handles: Sequence[str]) -> dict[str, Any]:
        own = self.spread.export
        exports = [ExchangeExport(own.kind, handle, own.size_bytes) for handle in handles]
        self.spread.join(generation, place, exports, 0)
        self.generation, self.place, self.round = generation, place, 0
        return {}

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
            rows.append(Row(slot, _pages(slot), 0, tuple(prompt)))
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
            Row(slot, _pages(slot), self._lengths[slot], None, num_drafts=wanted)
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


def _pages(slot: int) -> tuple[int, ...]:
    return tuple(range(slot * PAGES_EACH, (slot + 1) * PAGES_EACH))


if __name__ == "__main__":
    serve(DraftMember)
