"""An engine without a model, whose text shows what was done to its cache.

The cache holds real content: each token's id sits at its position of its page, the state slot is a
running hash of all tokens. The next token is a function of what the cache holds, so a page or a
state slot that was reused, zeroed, torn or swapped at any moment changes the text.
"""

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch

from engine.batch import Binding, ForwardBatch, Sampled, Scoring, StepResult
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.sampling import SamplingParams, StopRule

EOS = 7
VOCAB = 64
POISON = 99
LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def advance(state: int, token: int) -> int:
    return (state * 31 + token + 1) % 65_521


def next_token(state: int, context: list[int]) -> int:
    return (state + 13 * sum(context) + 5 * len(context)) % VOCAB


def expected_output(prompt: tuple[int, ...], stop: StopRule) -> list[int]:
    """What one engine alone would answer."""
    tokens, state = list(prompt), 0
    for token in tokens:
        state = advance(state, token)
    while True:
        token = next_token(state, tokens)
        tokens.append(token)
        if stop.finish_reason(num_output=len(tokens) - len(prompt), token_id=token):
            return tokens[len(prompt) :]
        state = advance(state, token)


def expected_rows(prompt: tuple[int, ...]) -> bytes:
    """The prompt's log-probabilities as one engine alone would give them: of each token but the
    first, in place of the log-probability and the rank, the token and the state before it."""
    rows, state = [], 0
    for token, following in itertools.pairwise(prompt):
        state = advance(state, token)
        rows.append(_words(following, state))
    return b"".join(rows)


def _words(token: int, state: int) -> bytes:
    return np.float32(-token).tobytes() + np.int32(state).tobytes()


class Died(Exception):
    """What a worker was given to compute has ended its process."""


class FakeEngine:
    """Steps run late: in launch order, when the device gets to them or the host asks.

    A row's logits are not finite when ``nan`` says so. A sequence with the token ``POISON`` raises
    Died when it gets ``dies_at`` tokens long; with 0 its logits are not finite.
    """

    def __init__(
        self, size: PoolSize, *, nan: Callable[[], bool] = lambda: False, dies_at: int = 0
    ) -> None:
        self.layout, self.pools, self.nan, self.dies_at = LAYOUT, size, nan, dies_at
        buffer = torch.zeros(Region.of(LAYOUT, size).size_bytes, dtype=torch.uint8)
        self.cache = CacheTensors.over(buffer, LAYOUT, size)
        self.next_token = [0] * size.num_state_slots
        self.queue: deque[FakeStep] = deque()
        self.config = SimpleNamespace(poison=True)
        for tensor in (self.cache.kv, self.cache.conv, self.cache.recurrent):
            tensor.fill_(float("nan"))

    def poison_pages(self, ids: list[int]) -> None:
        self.cache.kv[ids] = float("nan")

    def poison_slot(self, state_slot: int) -> None:
        self.cache.conv[state_slot] = float("nan")
        self.cache.recurrent[state_slot] = float("nan")

    def prepare(self, sampling: SamplingParams) -> None:
        """Nothing to prepare."""

    def bind(self, binding: Binding) -> None:
        output = binding.output_ids
        self.queue.append(FakeStep(self, None, (binding.state_slot, output[-1] if output else -1)))

    def launch(self, batch: ForwardBatch) -> "FakeStep":
        step = FakeStep(self, batch, None)
        self.queue.append(step)
        return step

    def run_one(self) -> None:
        self.queue.popleft().execute()


@dataclass(eq=False)
class FakeStep:
    engine: FakeEngine
    batch: ForwardBatch | None
    bound: tuple[int, int] | None
    sampled: list[tuple[Sampled, ...]] = field(default_factory=list)
    scored: dict[int, bytes | None] = field(default_factory=dict)
    executed: bool = False

    def execute(self) -> None:
        self.executed = True
        if self.bound is not None:
            self.engine.next_token[self.bound[0]] = self.bound[1]
        for index, row in enumerate(self.batch.rows if self.batch else ()):
            token = self._row(index, row)
            self.sampled.append(() if token is None else (token,))

    def _row(self, index: int, row) -> Sampled | None:
        engine = self.engine
        cache, slot = engine.cache, row.state_slot
        tokens = row.token_ids if row.token_ids is not None else (engine.next_token[slot],)
        state = 0 if row.start == 0 else _int(cache.recurrent[slot].item())
        states: list[int] = []
        for offset, token in enumerate(tokens):
            position = row.start + offset
            page = row.block_table[position // LAYOUT.page_size]
            cache.kv[page, 0, :, position % LAYOUT.page_size] = float(token)
            state = advance(state, token)
            states.append(state)
        if row.scoring is not None:
            self._score(index, row.scoring, states)
        cache.recurrent[slot] = float(state)
        cache.conv[slot] = float(tokens[-1])
        if not row.sample:
            return None
        length = row.start + len(tokens)
        pages = cache.kv[list(row.block_table), 0, 0].reshape(-1)[:length]
        context = [_int(value) for value in pages.tolist()]
        if POISON in context and length >= engine.dies_at > 0:
            raise Died
        if engine.nan() or (POISON in context and not engine.dies_at):
            return Sampled(None)
        engine.next_token[slot] = next_token(state, context)
        return Sampled(engine.next_token[slot])

    def _score(self, index: int, scoring: Scoring, states: list[int]) -> None:
        assert scoring.num_top == 0
        before = states[scoring.first :]
        words = [_words(*pair) for pair in zip(scoring.next_ids, before, strict=False)]
        self.scored[index] = None if self.engine.nan() else b"".join(words)

    def result(self) -> StepResult:
        while not self.executed:
            self.engine.run_one()
        return StepResult(tuple(self.sampled), self.scored)


def _int(value: float) -> int:
    """Poison reads as a token that nobody expects, as it would on a real device."""
    return -1_000_003 if value != value else int(value)
