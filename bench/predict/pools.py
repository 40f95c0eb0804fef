"""Simulates the life of each request in a set-up of pools. Pure.

1. *Admitted*, one after the other, and placed with the worker that has the fewest prompt tokens
   ahead, at most ``MAX_TOKENS_AHEAD``.
2. *Computed* in batches of at most ``MAX_BATCH_TOKENS``; a longer prompt takes several. A prefill
   worker forms the next batch when the previous one begins. The end of a prompt's last batch gives
   the first token.
3. *Handed off* to the decode worker with the fewest sequences, ``handoff_s`` later.
4. *Decoded* at the pace of steps.py.

A colocated worker has no step 3. It computes a batch of prompts after each decode step, and decodes
nothing meanwhile. Beside running sequences a batch has at most ``TOKENS_BESIDE_DECODE`` tokens,
except in a burst (prefill/limits.py).

``keep_open`` keeps a number of requests open: a client sends the next one when it has the last
token. ``replay`` sends the requests of a plan at their times. Memory is not modelled: it limits
neither prompts nor sequences.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.measures import percentile
from bench.predict.decoders import Clock, Decoders
from bench.predict.node import SHORT_LEN, Level, Node, Request
from bench.setups import Setup
from coordinator.core.settings import PlacementLimits
from decode.spread_table import between
from prefill.limits import PrefillLimits, RoundLimits

MAX_TOKENS_AHEAD = PlacementLimits.max_tokens_ahead
MAX_BATCH_TOKENS, MAX_BATCH_ROWS, TOKENS_BESIDE_DECODE = 8_192, 16, 2_048
"""The defaults of workers on GPUs (worker/role_options.py)."""
LIMITS = RoundLimits(PrefillLimits(MAX_BATCH_TOKENS, MAX_BATCH_ROWS), TOKENS_BESIDE_DECODE)


@dataclass(frozen=True)
class Predicted:
    total_tok_s: float
    seconds: float
    ttft_p50_ms: float
    ttft_p99_ms: float


def predict(node: Node, setup: Setup, level: Level) -> Predicted:
    """The figures of ``level`` on fixed pools."""
    return predicted(Simulation(node, setup), level)


def predicted(pools: "Simulation", level: Level) -> Predicted:
    """The figures of ``level`` on pools that have simulated nothing yet."""
    to_send = [
        Request(level.input_len, level.output_len, level.cached_len) for _ in range(level.requests)
    ]
    pools.keep_open(to_send, level.at_once)
    ended_at = max(each.ended_at for each in to_send)
    tokens = level.requests * (level.input_len + level.output_len)
    p50, p99 = (1e3 * percentile([r.ttft_s for r in to_send], share) for share in (0.5, 0.99))
    return Predicted(tokens / ended_at, ended_at, p50, p99)


@dataclass(frozen=True)
class Chunk:
    """``num_tokens`` of a prompt in one batch; ``last``: they complete it."""

    request: Request
    num_tokens: int
    last: bool

    def pairs(self, depth: int) -> float:
        """Pairs of a token of the chunk and an earlier one of its prompt, beyond those of prompts
        of ``SHORT_LEN``. ``depth``: tokens of the prompt before the chunk."""
        return self.num_tokens * (depth + max(0.0, self.num_tokens - SHORT_LEN) / 2)


Batch = tuple[list[Chunk], float]
"""Chunks of prompts, and the seconds that they take."""


@dataclass(eq=False)
class Worker:
    """A worker that computes prompts."""

    number: int
    waiting: deque[Request] = field(default_factory=deque)
    launched: deque[Batch] = field(default_factory=deque)
    tokens_ahead: int = 0
    placed: int = 0
    in_round: bool = False

    def has_room(self, request: Request) -> bool:
        """True if the prompt may be placed here now."""
        ahead = self.tokens_ahead
        return ahead == 0 or ahead + request.num_new <= MAX_TOKENS_AHEAD


class Simulation:
    """One simulation, for one call of ``replay`` or ``keep_open``, which fills in when each request
    got its tokens. ``num_open``: requests that have not ended, in ``replay`` also later ones."""

    def __init__(self, node: Node, setup: Setup) -> None:
        self.clock = Clock()
        self.num_open = 0
        self._node = node
        self._unsent: Iterator[Request] = iter(())
        self._colocated = setup.num_prefill == 0
        number = setup.num_decode + setup.num_prefill
        self._decoders = Decoders(self.clock, number, node.steps, node.context_s)
        self._decoders.lenders = range(setup.num_decode, number)
        prompts = setup.num_prefill or setup.num_decode
        self._workers = [Worker(number) for number in range(prompts)]
        self._sequences = [0] * setup.num_decode
        self._given_last = [0] * setup.num_decode
        self._queue: deque[Request] = deque()
        self._admitted_at = 0.0
        self._num_placed = 0

    def replay(self, due: Sequence[tuple[float, Request]]) -> None:
        """Send each request at its time, in seconds."""
        self.num_open = len(due)
        for at_s, request in due:
            self.clock.after(at_s, partial(self._send, request))
        self._begin()
        self.clock.run()

    def keep_open(self, requests: Iterable[Request], at_once: int) -> None:
        """Send the requests, ``at_once`` open at a time."""
        self._unsent = iter(requests)
        for _ in range(at_once):
            self._send_next()
        self._begin()
        self.clock.run()

    def _begin(self) -> None:
        """Schedule what happens beside the requests: nothing, with fixed pools."""

    def _send_next(self) -> None:
        if (request := next(self._unsent, None)) is not None:
            self.num_open += 1
            self._send(request)

    def _ended(self, request: Request) -> None:
        """Note that a request has its last token."""
        request.ended_at = self.clock.now
        self.num_open -= 1
        self._send_next()

    def _send(self, request: Request) -> None:
        request.sent_at = now = self.clock.now
        self._admitted_at = max(self._admitted_at, now) + self._node.admit_s
        wait_s = self._admitted_at - now + self._node.way_s
        self.clock.after(wait_s, partial(self._arrived, request))

    # ---- prompts

    def _arrived(self, request: Request) -> None:
        self._queue.append(request)
        self._place()

    def _place(self) -> None:
        while self._queue:
            request = self._queue[0]
            room = [w for w in self._workers if w.has_room(request)]
            if not room:
                return
            worker = min(room, key=self._load)
            self._num_placed += 1
            worker.placed = self._num_placed
            worker.tokens_ahead += request.num_new
            worker.waiting.append(self._queue.popleft())
            if self._colocated:
                self._sequences[worker.number] += 1
                self._go_on(worker)
            else:
                self._launch(worker)

    def _load(self, worker: Worker) -> tuple[int, int, int]:
        sequences = self._sequences[worker.number] if self._colocated else 0
        return sequences, worker.tokens_ahead, worker.placed

    def _launch(self, worker: Worker) -> None:
        """Launch the next batches of a prefill worker: one under way, one behind it."""
        while worker.waiting and len(worker.launched) < 2:
            worker.launched.append(self._batch(worker, MAX_BATCH_TOKENS))
            if len(worker.launched) == 1:
                self._compute(worker)

    def _compute(self, worker: Worker) -> None:
        batch, seconds = worker.launched[0]
        gpu = len(self._sequences) + worker.number  # behind those that decode
        self._decoders.pause(gpu)

        def done() -> None:
            worker.launched.popleft()
            if worker.launched:
                self._compute(worker)
            else:
                self._decoders.resume(gpu)
            self._launch(worker)
            for request in self._computed(worker, batch):
                self.clock.after(self._node.handoff_s, partial(self._hand_off, request))
            self._place()

        self.clock.after(seconds, done)

    def _round(self, worker: Worker) -> None:
        """Run a round of a colocated worker: a decode step if sequences run, then a batch."""
        worker.in_round = True
        running = self._decoders.running(worker.number)
        step_s = self._decoders.step_s(worker.number) if running else 0.0
        self.clock.after(step_s, partial(self._batch_beside, worker))

    def _batch_beside(self, worker: Worker) -> None:
        running, waiting = self._decoders.running(worker.number), len(worker.waiting)
        most = LIMITS.max_tokens(num_running=running, num_waiting=waiting)
        batch, seconds = self._batch(worker, most)
        self._decoders.pause(worker.number)

        def done() -> None:
            self._decoders.resume(worker.number)
            for request in self._computed(worker, batch):
                self._decode(worker.number, request)
            worker.in_round = False
            self._place()
            self._go_on(worker)

        self.clock.after(seconds, done)

    def _go_on(self, worker: Worker) -> None:
        if worker.waiting and not worker.in_round:
            self._round(worker)

    def _batch(self, worker: Worker, max_tokens: int) -> Batch:
        chunks: list[Chunk] = []
        num_tokens, pairs = 0, 0.0
        while worker.waiting and num_tokens < max_tokens and len(chunks) < MAX_BATCH_ROWS:
            request = worker.waiting[0]
            taken = min(request.num_new, max_tokens - num_tokens)
            chunk = Chunk(request, taken, last=taken == request.num_new)
            pairs += chunk.pairs(request.num_computed)
            request.num_computed += taken
            num_tokens += taken
            chunks.append(chunk)
            if chunk.last:
                worker.waiting.popleft()
        seconds = between(self._node.prefill_s, num_tokens) + self._node.attention_s * pairs
        return chunks, seconds

    def _computed(self, worker: Worker, batch: Iterable[Chunk]) -> list[Request]:
        """Count a batch as computed; returns the requests whose prompts are complete, which have
        their first token."""
        complete = []
        for chunk in batch:
            worker.tokens_ahead -= chunk.num_tokens
            if chunk.last:
                chunk.request.first_token_at = self.clock.now
                complete.append(chunk.request)
        return complete

    # ---- tokens

    def _hand_off(self, request: Request) -> None:
        least = self._least()
        self._sequences[least] += 1
        self._decode(least, request)

    def _least(self) -> int:
        """The decode worker for the next sequence."""
        least = min(self._decoding(), key=lambda i: (self._sequences[i], self._given_last[i]))
        self._num_placed += 1
        self._given_last[least] = self._num_placed
        return least

    def _decoding(self) -> Iterable[int]:
        """The numbers of the workers that take sequences."""
        return range(len(self._sequences))

    def _decode(self, gpu: int, request: Request) -> None:
        def ended() -> None:
            self._sequences[gpu] -= 1
            self._ended(request)

        num_tokens = request.output_len - 1
        if num_tokens == 0:
            ended()
        else:
            self._decoders.join(gpu, num_tokens, ended, request.more_context)
