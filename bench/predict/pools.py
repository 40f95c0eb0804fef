"""What a set-up of pools gives with so many requests at once: the life of each, simulated. Pure.

1. *Admitted*, one after the other; placed with the worker that has the fewest prompt tokens ahead,
   while these are at most ``MAX_TOKENS_AHEAD``.
2. *Computed* in batches of at most ``MAX_BATCH_TOKENS``; a prefill worker puts the next batch
   together when the one before it begins. The first token is there.
3. *Handed off* to the decode worker with the fewest sequences, ``handoff_s`` later.
4. *Decoded* at the pace of steps.py. The client sends its next request when it has the last token.

There is no step 3 at a colocated worker. It computes a batch of prompts after each decode step, and
decodes nothing meanwhile; beside running sequences a batch has at most ``TOKENS_BESIDE_DECODE``
tokens, except in a burst (colocated/limits.py).
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
    """What GPUs and the ways between them take, in seconds. ``prefill_s`` is a batch's, over its
    tokens; ``way_s`` a request's to its worker and its first token's back; ``handoff_s`` from the
    first token to the beginning of the decode step with the sequence. Of the last three the
    defaults are for H200s: a request alone has its first token after 32 ms where its prompt takes
    26.4, and of 5.6 ms between first and second token a step takes 2.6."""

    prefill_s: Curve
    steps: Steps
    way_s: float = 0.005
    admit_s: float = 0.0005
    handoff_s: float = 0.003


@dataclass(frozen=True)
class Level:
    """``requests`` in all, ``at_once`` of them open at a time."""

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
    """One that computes prompts, which are known by when they were sent."""

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
        """A prefill worker's next batches: one under way, one behind it."""
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
        """A colocated worker's: a decode step where anything runs, then a batch."""
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
