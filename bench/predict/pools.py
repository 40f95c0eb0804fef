"""Simulates the life of each request in a set-up of pools, with a number of them at once. Pure.

1. *Admitted*, one after the other, and placed with the worker that has the fewest prompt tokens
   ahead, at most ``MAX_TOKENS_AHEAD``.
2. *Computed* in batches of at most ``MAX_BATCH_TOKENS``. A prefill worker forms the next batch
   when the previous one begins. The end of the batch gives the first token.
3. *Handed off* to the decode worker with the fewest sequences, ``handoff_s`` later.
4. *Decoded* at the pace of steps.py. The client sends its next request when it has the last token.

A colocated worker has no step 3. It computes a batch of prompts after each decode step, and decodes
nothing meanwhile. Beside running sequences a batch has at most ``TOKENS_BESIDE_DECODE`` tokens,
except in a burst (colocated/limits.py).
"""

from collections import deque
from dataclasses import dataclass, field

from bench.measures import percentile
from bench.predict.decoders import Clock, Decoders
from bench.predict.steps import Steps
from bench.setups import Setup
from coordinator.core.settings import PlacementLimits
from decode.spread_table import Curve, between

MAX_TOKENS_AHEAD = PlacementLimits.max_tokens_ahead
MAX_BATCH_TOKENS, TOKENS_BESIDE_DECODE = 8_192, 2_048
"""The defaults of workers on GPUs (worker/role_options.py)."""


@dataclass(frozen=True)
class Node:
    """Times of GPUs and of the paths between them, in seconds.

    ``prefill_s``: of a batch, over its tokens. ``way_s``: of a request to its worker and of its
    first token back. ``handoff_s``: from the first token to the begin of the decode step with the
    sequence. The defaults are for H200s: a request alone has its first token after 32 ms, 26.4 for
    its prompt, and a step takes 2.6 of the 5.6 ms to its second token."""

    prefill_s: Curve
    steps: Steps
    way_s: float = 0.005
    admit_s: float = 0.0005
    handoff_s: float = 0.003


@dataclass(frozen=True)
class Level:
    """A level: ``requests`` in all, ``at_once`` of them open at a time."""

    at_once: int
    requests: int
    input_len: int = 1024
    output_len: int = 1024


@dataclass(frozen=True)
class Predicted:
    total_tok_s: float
    seconds: float
    ttft_p50_ms: float
    ttft_p99_ms: float


def predict(node: Node, setup: Setup, level: Level) -> Predicted:
    run = _Run(node, setup, level)
    for _ in range(min(level.at_once, level.requests)):
        run.send()
    run.clock.run()
    assert len(run.ttft_s) == level.requests, "a request has not ended"
    tokens = level.requests * (level.input_len + level.output_len)
    p50, p99 = (1e3 * percentile(run.ttft_s, share) for share in (0.5, 0.99))
    return Predicted(tokens / run.ended_at_s, run.ended_at_s, p50, p99)


@dataclass(eq=False)
class _Worker:
    """A worker that computes prompts. A prompt is known by the time when it was sent."""

    number: int
    waiting: deque[float] = field(default_factory=deque)
    launched: deque[list[float]] = field(default_factory=deque)
    tokens_ahead: int = 0
    placed: int = 0
    in_round: bool = False


class _Run:
    def __init__(self, node: Node, setup: Setup, level: Level) -> None:
        self.clock = Clock()
        self.ttft_s: list[float] = []
        self.ended_at_s = 0.0
        self._node, self._level = node, level
        self._colocated = setup.num_prefill == 0
        self._decoders = Decoders(self.clock, setup.num_decode, node.steps)
        prompts = setup.num_prefill or setup.num_decode
        self._workers = [_Worker(number) for number in range(prompts)]
        self._sequences = [0] * setup.num_decode
        self._given_last = [0] * setup.num_decode
        self._queue: deque[float] = deque()
        self._to_send = level.requests
        self._admitted_at = 0.0
        self._num_placed = 0

    def send(self) -> None:
        if self._to_send == 0:
            return
        self._to_send -= 1
        sent_at = self.clock.now
        self._admitted_at = max(self._admitted_at, sent_at) + self._node.admit_s
        self.clock.after(
            self._admitted_at - sent_at + self._node.way_s, lambda: self._arrived(sent_at)
        )

    # ---- prompts

    def _arrived(self, sent_at: float) -> None:
        self._queue.append(sent_at)
        self._place()

    def _place(self) -> None:
        length = self._level.input_len
        while self._queue:
            room = [
                w for w in self._workers
                if w.tokens_ahead == 0 or w.tokens_ahead + length <= MAX_TOKENS_AHEAD
            ]  # fmt: skip
            if not room:
                return
            worker = min(room, key=self._load)
            self._num_placed += 1
            worker.placed = self._num_placed
            worker.tokens_ahead += length
            worker.waiting.append(self._queue.popleft())
            if self._colocated:
                self._sequences[worker.number] += 1
                if not worker.in_round:
                    self._round(worker)
            else:
                self._launch(worker)

    def _load(self, worker: _Worker) -> tuple[int, int, int]:
        sequences = self._sequences[worker.number] if self._colocated else 0
        return sequences, worker.tokens_ahead, worker.placed

    def _launch(self, worker: _Worker) -> None:
        """Launch the next batches of a prefill worker: one under way, one behind it."""
        while worker.waiting and len(worker.launched) < 2:
            worker.launched.append(self._batch(worker, MAX_BATCH_TOKENS))
            if len(worker.launched) == 1:
                self._compute(worker)

    def _compute(self, worker: _Worker) -> None:
        batch = worker.launched[0]

        def done() -> None:
            worker.launched.popleft()
            if worker.launched:
                self._compute(worker)
            self._launch(worker)
            for sent_at in batch:
                self._first_token(sent_at)
                self.clock.after(self._node.handoff_s, self._hand_off)
            self._computed(worker, batch)

        self.clock.after(self._prefill_s(batch), done)

    def _round(self, worker: _Worker) -> None:
        """Run a round of a colocated worker: a decode step if sequences run, then a batch."""
        worker.in_round = True
        running = self._decoders.running(worker.number)
        step_s = self._decoders.step_s(worker.number) if running else 0.0
        self.clock.after(step_s, lambda: self._batch_beside(worker))

    def _batch_beside(self, worker: _Worker) -> None:
        running, waiting = self._decoders.running(worker.number), len(worker.waiting)
        burst = waiting > 1 and 2 * waiting > running
        batch = self._batch(
            worker, MAX_BATCH_TOKENS if burst or not running else TOKENS_BESIDE_DECODE
        )
        self._decoders.pause(worker.number)

        def done() -> None:
            self._decoders.resume(worker.number)
            for sent_at in batch:
                self._first_token(sent_at)
                self._decode(worker.number)
            worker.in_round = False
            self._computed(worker, batch)
            if worker.waiting and not worker.in_round:
                self._round(worker)

        self.clock.after(self._prefill_s(batch), done)

    def _batch(self, worker: _Worker, max_tokens: int) -> list[float]:
        number = max(1, max_tokens // self._level.input_len)
        return [worker.waiting.popleft() for _ in range(min(number, len(worker.waiting)))]

    def _prefill_s(self, batch: list[float]) -> float:
        return between(self._node.prefill_s, len(batch) * self._level.input_len)

    def _computed(self, worker: _Worker, batch: list[float]) -> None:
        worker.tokens_ahead -= len(batch) * self._level.input_len
        self._place()

    # ---- tokens

    def _first_token(self, sent_at: float) -> None:
        self.ttft_s.append(self.clock.now - sent_at)

    def _hand_off(self) -> None:
        least = min(
            range(len(self._sequences)), key=lambda i: (self._sequences[i], self._given_last[i])
        )
        self._num_placed += 1
        self._given_last[least] = self._num_placed
        self._sequences[least] += 1
        self._decode(least)

    def _decode(self, gpu: int) -> None:
        def ended() -> None:
            self._sequences[gpu] -= 1
            self.ended_at_s = self.clock.now
            self.send()

        if self._level.output_len == 1:
            ended()
        else:
            self._decoders.join(gpu, self._level.output_len - 1, ended)
