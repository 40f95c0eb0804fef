"""An engine without a model, whose text shows what was done to its cache.

The cache holds real content: each token's id sits at its position of its page, the state slot is a
running hash of all tokens. The next token is a function of what the cache holds, so a page or a
state slot that was reused, zeroed, torn or swapped at any moment changes the text.
"""

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import torch

from engine.batch import Binding, ForwardBatch, Sampled, Scoring, StepResult
from engine.checks import Checks
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.sampling import SamplingParams, StopRule

EOS = 7
VOCAB = 64
POISON = 99
UNEXPECTED = -1_000_003
"""What NaN reads as: a token that nobody expects, as it would on a real device."""
LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)
PAGES_ALONE = CacheLayout("float32", 16, 1, 1, 1, 0, 0, 0, 0, 0, 0)
"""Of a model without states: the running hash is made of the tokens in the pages."""


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


class Killed(Exception):
    """The process was killed while it waited for its device."""


class FakeEngine:
    """Steps run late: in launch order, when the device gets to them or the host asks.

    A row's logits are not finite when ``nan`` says so. A sequence with the token ``POISON`` raises
    Died when it gets ``dies_at`` tokens long; with 0 its logits are not finite. ``compiling`` are
    grammars whose compilation ends when the test ends it.
    """

    def __init__(
        self,
        size: PoolSize,
        *,
        nan: Callable[[], bool] = lambda: False,
        dies_at: int = 0,
        guesses_right: Callable[[], bool] = lambda: False,
        layout: CacheLayout = LAYOUT,
    ) -> None:
        self.layout, self.pools, self.nan, self.dies_at = layout, size, nan, dies_at
        self.fingerprint, self.epoch_stream = "m", None
        self.overlap: object | None = None
        self.guesses_right, self.num_ids = guesses_right, VOCAB
        self.slots = [FakeSlot() for _ in range(size.num_state_slots)]
        buffer = torch.zeros(Region.of(layout, size).size_bytes, dtype=torch.uint8)
        self.cache = CacheTensors.over(buffer, layout, size)
        # numpy reads and writes single values in a tenth of torch's time.
        self.kv, self.conv = self.cache.kv.numpy(), self.cache.conv.numpy()
        self.recurrent = self.cache.recurrent.numpy()
        self.next_token = [0] * size.num_state_slots
        self.queue: deque[FakeStep | Queued] = deque()
        self.checks = Checks(layout, size, 1 << 30)
        self.config = SimpleNamespace(poison=True)
        self.unread_spread = 0
        self.compiling: list[Future] = []
        for values in (self.kv, self.conv, self.recurrent):
            values.fill(float("nan"))

    def poison_pages(self, ids: list[int]) -> None:
        self.kv[ids] = float("nan")

    def poison_slot(self, state_slot: int) -> None:
        self.conv[state_slot] = float("nan")
        self.recurrent[state_slot] = float("nan")

    def prepare(self, sampling: SamplingParams) -> Future | None:
        if sampling.constraint is None:
            return None
        self.compiling.append(Future())
        return self.compiling[-1]

    def bind(self, binding: Binding) -> None:
        compiled = binding.compiled
        assert compiled is None or compiled.done(), "this would wait for a compiler"
        slot, last = binding.state_slot, binding.output_ids[-1] if binding.output_ids else -1

        def execute() -> None:
            self.next_token[slot], self.slots[slot] = last, FakeSlot()

        self.checks.forget(slot)
        self.queue.append(Queued(execute))

    def restore(self, state_slot: int, from_slot: int, num_tokens: int) -> None:
        def execute() -> None:
            for states in (self.conv, self.recurrent):
                states[state_slot] = states[from_slot]

        self.checks.begin_at(state_slot, num_tokens)
        self.queue.append(Queued(execute))

    def copy_page(self, from_page: int, to_page: int) -> None:
        def execute() -> None:
            self.kv[to_page] = self.kv[from_page]

        self.queue.append(Queued(execute))

    def launch(self, batch: ForwardBatch) -> "FakeStep":
        self.checks.check(batch)
        decodes = any(row.token_ids is None for row in batch.rows)
        assert not (decodes and self.unread_spread), "a local step behind a spread one"
        step = FakeStep(self, batch)
        self.queue.append(step)
        return step

    def apply_pending(self, state_slot: int) -> int:
        """Add to the state in a slot what the last step has left to this one; returns the state."""
        slot = self.slots[state_slot]
        state = _int(self.recurrent[state_slot].item())
        for token in slot.pending:
            state = advance(state, token)
            self.conv[state_slot] = float(token)
        self.recurrent[state_slot], slot.pending = float(state), []
        return state

    @property
    def may_run(self) -> bool:
        """Whether the device can go on by itself."""
        return bool(self.queue) and self.queue[0].may_run

    def run_one(self) -> None:
        self.queue.popleft().execute()


@dataclass
class FakeSlot:
    """What the device knows of a state slot: the tokens in its cache (None: as the next row says),
    the drafts for its next step, and the last step's tokens that the state does not have yet."""

    length: int | None = None
    drafts: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Queued:
    """What the device does between steps, in its turn."""

    execute: Callable[[], None]
    may_run: bool = True


@dataclass(eq=False)
class FakeStep:
    engine: FakeEngine
    batch: ForwardBatch
    sampled: list[tuple[Sampled, ...]] = field(default_factory=list)
    scored: dict[int, bytes | None] = field(default_factory=dict)
    num_drafts: list[int] = field(default_factory=list)
    executed: bool = False
    looks_done: Callable[[], bool] | None = None
    num_looks: int = 0
    took_s: float | None = None
    num_multiprocessors = 1
    num_stored: ClassVar[int] = 1

    @property
    def is_done(self) -> bool:
        """Without ``looks_done``: when asked for the third time."""
        if self.looks_done is not None:
            return self.looks_done()
        self.num_looks += 1
        return self.num_looks > 2

    @property
    def may_run(self) -> bool:
        return True

    def most_drafts(self, row) -> int:
        """That the step verifies."""
        return row.num_drafts

    def execute(self) -> None:
        self.executed = True
        for index, row in enumerate(self.batch.rows):
            if row.token_ids is None:
                self.sampled.append(tuple(self._decode(row)))
                continue
            self.num_drafts.append(0)
            token = self._row(index, row)
            self.sampled.append(() if token is None else (token,))

    def _row(self, index: int, row) -> Sampled | None:
        engine, slot, states = self.engine, row.state_slot, list[int]()
        state = self._state(row, row.start)
        for offset, token in enumerate(row.token_ids):
            self._write(row, row.start + offset, token)
            state = advance(state, token)
            states.append(state)
            if row.keep is not None and row.keep.num_tokens == offset + 1:
                engine.recurrent[row.keep.state_slot] = float(state)
                engine.conv[row.keep.state_slot] = float(token)
        if row.scoring is not None:
            self._score(index, row.scoring, states)
        engine.recurrent[slot] = float(state)
        engine.conv[slot] = float(row.token_ids[-1])
        if not row.sample:
            return None
        sampled = self._sample(row, row.start + len(row.token_ids), state)
        if sampled.token_id is not None:
            engine.next_token[slot] = sampled.token_id
        return sampled

    def _decode(self, row) -> list[Sampled]:
        """The certain token and its drafts, each sampled from what the cache holds up to it."""
        engine, id = self.engine, row.state_slot
        slot = engine.slots[id]
        length = row.start if slot.length is None else slot.length
        assert length >= row.start, "the host counts more tokens than the device"
        # A step ahead of the host's knowledge that the sequence has ended: its tokens are dropped.
        length = min(length, len(row.block_table) * LAYOUT.page_size - 1)
        room = len(row.block_table) * LAYOUT.page_size
        drafts = slot.drafts[: min(self.most_drafts(row), room - length - 1)]
        self.num_drafts.append(len(drafts))
        if engine.layout.has_states:
            state = engine.apply_pending(id)
        else:
            state, slot.pending = self._state(row, length), []
        sampled = list[Sampled]()
        for place, token in enumerate([engine.next_token[id], *drafts]):
            self._write(row, length + place, token)
        for place, token in enumerate([engine.next_token[id], *drafts]):
            state = advance(state, token)
            if place < self.num_stored:
                engine.recurrent[id] = float(state)
                engine.conv[id] = float(token)
            else:
                slot.pending.append(token)
            sampled.append(self._sample(row, length + place + 1, state))
            if place == len(drafts) or sampled[-1].token_id != drafts[place]:
                break
        slot.length = length + len(sampled)
        engine.next_token[id] = sampled[-1].token_id or 0
        slot.drafts = self._guess(row, slot.length, state)
        return sampled

    def _guess(self, row, length: int, state: int) -> list[int]:
        """Drafts of the tokens behind the next one, some of them right."""
        num, engine = self.batch.num_next_drafts, self.engine
        context, guesses = self._context(row, length), list[int]()
        token = engine.next_token[row.state_slot]
        room = len(row.block_table) * LAYOUT.page_size
        for _ in range(min(num, room - length - 1)):
            context, state = [*context, token], advance(state, token)
            token = next_token(state, context) if engine.guesses_right() else 3
            guesses.append(token)
        return guesses

    def _write(self, row, position: int, token: int) -> None:
        page = row.block_table[position // LAYOUT.page_size]
        self.engine.kv[page, 0, :, position % LAYOUT.page_size] = float(token)

    def _state(self, row, length: int) -> int:
        """The state behind ``length`` tokens, whose state the row's slot has."""
        state = 0
        if not self.engine.layout.has_states:
            for token in self._context(row, length):
                state = advance(state, token)
        elif length:
            state = _int(self.engine.recurrent[row.state_slot].item())
        return state

    def _context(self, row, length: int) -> list[int]:
        values = self.engine.kv[list(row.block_table), 0, 0].reshape(-1)[:length]
        context: list[int] = np.where(np.isnan(values), UNEXPECTED, values).astype(int).tolist()
        return context

    def _sample(self, row, length: int, state: int) -> Sampled:
        engine, context = self.engine, self._context(row, length)
        if POISON in context and length >= engine.dies_at > 0:
            raise Died
        if engine.nan() or (POISON in context and not engine.dies_at):
            return Sampled(None)
        return Sampled(next_token(state, context))

    def _score(self, index: int, scoring: Scoring, states: list[int]) -> None:
        assert scoring.num_top == 0
        before = states[scoring.first :]
        words = [_words(*pair) for pair in zip(scoring.next_ids, before, strict=False)]
        self.scored[index] = None if self.engine.nan() else b"".join(words)

    def result(self) -> StepResult:
        while not self.executed:
            self.engine.run_one()
        return StepResult(tuple(self.sampled), self.scored, tuple(self.num_drafts), self.num_stored)


def _int(value: float) -> int:
    return UNEXPECTED if value != value else int(value)
