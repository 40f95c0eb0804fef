"""Tokens, logits and states of spread steps against those of local ones, on one member
(bench/spread/member.py)."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from bench.spread.engine import PROMPT_LEN, MemberEngine
from engine.batch import Binding, ForwardBatch, Row
from engine.step import Step
from transport.wire.sampling import Constraint, SamplingParams, StopRule

PROMPTS_AT_ONCE = 32


class Run(NamedTuple):
    """Outcome of some steps: the tokens of each, logits of the verified tokens, and the states
    behind a last local step."""

    tokens: list[list[list[int]]]
    logits: list[torch.Tensor]
    states: list[torch.Tensor]


class Bits:
    """Runs of steps of ``live`` sequences, with prompts of the member's own. ``num_drafts`` are
    those of each step."""

    def __init__(self, engine: MemberEngine) -> None:
        self._engine = engine
        self._truth = Run([], [], [])
        self._lengths: list[int] = []
        self._began_at = self._prompts_at = 0.0

    def truth(self, live: int, num_drafts: Sequence[int]) -> dict[str, Any]:
        """Take local steps with these numbers of drafts, one after another: what follows is
        compared with them. All members begin that at the same time."""
        self._truth = self._run(live, live, num_drafts, spread=False)
        return {}

    def bits(self, live: int, most: int, num_drafts: Sequence[int]) -> dict[str, Any]:
        """Whether spread steps give the same; ``most`` is the largest member's ``live``."""
        return self._compared(self._run(live, most, num_drafts, spread=True))

    def stall(self, launches: bool, live: int, num_drafts: Sequence[int]) -> dict[str, Any]:
        """Whether local steps give the same, with two spread ones behind the first of them that not
        all members launch."""
        if not launches:
            return {}
        self._begin(live)
        tokens, logits = [self._take(self._local(live, num_drafts, 0))], [self._logits(live, 0, 0)]
        torch.cuda.synchronize()
        began = time.perf_counter()
        steps = [self._spread(live, live, num_drafts, 1, first=not i) for i in range(2)]
        results = [step.result() for step in steps]
        took_ms = 1e3 * (time.perf_counter() - began)
        for i in range(1, len(num_drafts)):
            tokens.append(self._take(self._local(live, num_drafts, i)))
            logits.append(self._logits(live, num_drafts[i], i))
        read = [[result.aborted, list(result.late)] for result in results]
        found = self._compared(Run(tokens, logits, self._states(live)))
        return found | {"ms": took_ms, "read": read}

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
        """Compute the prompts again. Every second sequence is sampled greedily, and every third has
        penalties or a constraint."""
        self._began_at = time.perf_counter()
        engine, place = self._engine.engine, self._engine.place
        rows, self._lengths = [], [PROMPT_LEN] * live
        for slot in range(live):
            prompt = [(7 * i + 31 * slot + 101 * place) % 1000 for i in range(PROMPT_LEN)]
            engine.bind(Binding(slot, prompt, (), _sampling(slot), StopRule(999)))
            rows.append(Row(slot, self._engine.pages(slot), 0, tuple(prompt)))
        for first in range(0, live, PROMPTS_AT_ONCE):
            prompts = tuple(rows[first : first + PROMPTS_AT_ONCE])
            engine.launch(ForwardBatch(prompts)).result()
        self._prompts_at = time.perf_counter()

    def _local(self, live: int, num_drafts: Sequence[int], i: int) -> Step:
        return self._engine.engine.launch(self._batch(live, num_drafts, i))

    def _spread(
        self, live: int, most: int, num_drafts: Sequence[int], i: int, *, first: bool
    ) -> Step:
        batch = self._batch(live, num_drafts, i)
        return self._engine.launch_spread(batch, most, num_drafts[i], first=first)

    def _batch(self, live: int, num_drafts: Sequence[int], i: int) -> ForwardBatch:
        """Step ``i``. The next one's drafts are made in it."""
        rows = (
            Row(slot, self._engine.pages(slot), self._lengths[slot], None, num_drafts=wanted)
            for slot, wanted in enumerate(_wanted(live, num_drafts[i], i))
        )
        return ForwardBatch(tuple(rows), [*num_drafts, 0][i + 1])

    def _take(self, step: Step) -> list[list[int]]:
        result = step.result()
        assert not result.aborted, f"late: {result.late}, {self._passed_ms()} ms"
        tokens = [[each.token_id or 0 for each in row] for row in result.sampled]
        for slot, row in enumerate(tokens):
            self._lengths[slot] += len(row)
        return tokens

    def _passed_ms(self) -> list[int]:
        """From the beginning of the run to the end of its prompts, and to now."""
        now = time.perf_counter()
        return [round(1e3 * (at - self._began_at)) for at in (self._prompts_at, now)]

    def _logits(self, live: int, num_drafts: int, i: int) -> torch.Tensor:
        """Logits of the tokens that the latest step sampled."""
        index = [
            slot * (num_drafts + 1) + place
            for slot, wanted in enumerate(_wanted(live, num_drafts, i))
            for place in range(wanted + 1)
        ]
        return self._engine.logits[index].clone()

    def _states(self, live: int) -> list[torch.Tensor]:
        if not live:
            return []
        self._local(live, [0], 0).result()
        cache = self._engine.engine.cache
        return [cache.conv[:live].clone(), cache.recurrent[:live].clone()]

    def _compared(self, found: Run) -> dict[str, Any]:
        truth = self._truth
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
    # A thought: drafts of tokens that a grammar restricts would not be accepted by lot.
    thought = Constraint("", thought_end=9) if slot % 3 == 1 else None
    return SamplingParams(temperature, seed=slot, logprobs=1, constraint=thought)


def _wanted(live: int, num_drafts: int, i: int) -> list[int]:
    """The first sequence has all drafts, others have fewer."""
    return [max(0, num_drafts - (slot + i) % 3 * bool(slot)) for slot in range(live)]
