"""Simulates pools that follow the load. Pure.

As in pools.py, and every ``LOOK_S`` the policy of the coordinator (core/pool_policy.py) is asked
for a change of roles. What crosses the border between the pools (core/soft_pools.py) is asked for
each prompt and each sequence. All workers compute in rounds, as colocated ones do. A sequence that
moves goes on ``MOVE_S`` later; the worker that it leaves takes a local step.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from bench.predict.node import Node, Request
from bench.predict.pools import Batch, Chunk, Simulation, Worker
from bench.setups import Setup
from coordinator.core.pool_forecast import PoolLoad
from coordinator.core.pool_meter import Answers
from coordinator.core.pool_policy import LOOK_S, PoolPolicy
from coordinator.core.pool_targets import PoolTargets
from coordinator.core.requests.balance import Balance, gains
from coordinator.core.requests.moves import MAX_AT_ONCE, MAX_TO_BALANCE
from coordinator.core.soft_pools import Site, SoftPools
from coordinator.core.step_times import StepTimes
from coordinator.core.workers.prompt_meter import Work
from decode.spread_table import between
from transport.wire.reports import MANY_TOKENS

MOVE_S = 0.03
BATCH_TOKENS = 8_192
NEWEST_PROMPT = 0.1
"""The share of the newest prompt in the mean length: with two workers as in prompt_meter.py, where
each counts its own."""
PAIR_S = 60.0
"""Two workers are a pair for so long after a common step (coordinator/core/workers/meters.py)."""
LATER_S = 1e-6
"""After the end of a wait, beyond rounding."""


@dataclass(frozen=True)
class Changing:
    """A set-up whose workers change their roles. ``first_prefill`` of them begin with prompts."""

    num_workers: int
    first_prefill: int
    targets: PoolTargets

    @classmethod
    def parse(cls, text: str) -> "Changing":
        """Parse ``auto:P+D``: P prefill and D decode workers at first, the default targets. Raises
        ValueError."""
        if found := re.fullmatch(r"auto:([1-9]\d*)\+([1-9]\d*)", text):
            return cls(int(found[1]) + int(found[2]), int(found[1]), PoolTargets())
        raise ValueError(f"--setup: {text!r} is not auto:P+D")

    @property
    def name(self) -> str:
        return f"auto:{self.num_workers}"


class NodeSpeeds:
    """The speeds of a node: of prompts by its table, then as they are measured."""

    def __init__(self, node: Node) -> None:
        self._prompts = Work()
        self._prompts.add(BATCH_TOKENS, between(node.prefill_s, BATCH_TOKENS))
        self._steps = StepTimes()
        self._answers = Answers()
        self._prompt_len = 1_000.0

    def prefill_tok_s(self) -> float:
        return self._prompts.num_tokens / self._prompts.seconds

    def note_batch(self, num_tokens: int, seconds: float) -> None:
        if num_tokens >= MANY_TOKENS:
            self._prompts.add(num_tokens, seconds)

    def new_tokens(self, num_tokens: int) -> int:
        return num_tokens

    def step_s(self, num_sequences: int) -> float:
        return self._steps.seconds(num_sequences)

    def note_step(self, num_sequences: int, seconds: float) -> None:
        self._steps.note(num_sequences, seconds)

    def answer_s(self) -> float:
        return self._answers.seconds

    def prompt_len(self) -> float:
        return self._prompt_len

    def note_prompt(self, num_tokens: int) -> None:
        self._prompt_len += NEWEST_PROMPT * (num_tokens - self._prompt_len)

    def answer_len(self) -> float:
        return self._answers.num_tokens

    def note_answer(self, seconds: float, num_tokens: int) -> None:
        self._answers.note(seconds, num_tokens)


def simulation(node: Node, setup: Setup | Changing) -> Simulation:
    """The simulation of fixed pools, or of pools that change."""
    return Simulation(node, setup) if isinstance(setup, Setup) else ChangingPools(node, setup)


class ChangingPools(Simulation):
    """``num_changes``: how many roles have changed."""

    def __init__(self, node: Node, setup: Changing) -> None:
        number = setup.num_workers
        super().__init__(node, Setup(0, number))
        self._speeds = NodeSpeeds(node)
        self._policy = PoolPolicy(setup.targets, self._speeds)
        self._soft = SoftPools(setup.targets, self._speeds)
        self._balance = Balance()
        self._prefills = [i < setup.first_prefill for i in range(number)]
        self._lend()
        self._helped: set[Request] = set()
        """Requests whose prompts a decode worker computes."""
        self._at: dict[Request, int] = {}
        """Requests that are decoded, and where."""
        self._queued_at: dict[Request, float] = {}
        self._prompts_ended_at: dict[int, float] = {}
        self._arrived_tokens = 0
        self._paired_at = -inf
        self.num_changes = 0

    def _begin(self) -> None:
        self.clock.after(LOOK_S, self._tick)

    def _tick(self) -> None:
        """Ask the policy, change a role, and move sequences away from prefill workers."""
        number, prefill = len(self._prefills), sum(self._prefills)
        for gpu in self._decoding():
            if rows := self._decoders.running(gpu):
                self._speeds.note_step(rows, self._decoders.step_s(gpu))
        waiting = self._queued() + sum(w.tokens_ahead for w in self._workers)
        load = PoolLoad(
            prefill,
            number - prefill,
            waiting,
            self._arrived_tokens,
            len(self._at),
            self._are_pair(),
        )
        self._arrived_tokens = 0
        wanted = self._policy.decide(load, self.clock.now)
        for _ in range(abs(wanted - prefill)):
            self._change(to_prefill=wanted > prefill)
        for gpu, prefills in enumerate(self._prefills):
            if prefills and self._sequences[gpu]:
                self._release(gpu)
            if prefills:
                self._take(gpu)
        self._even()
        self._place()
        if self.num_open:
            self.clock.after(LOOK_S, self._tick)

    def _queued(self) -> int:
        return sum(request.num_new for request in self._queue)

    def _change(self, *, to_prefill: bool) -> None:
        def work(gpu: int) -> int:
            return self._sequences[gpu] if to_prefill else self._workers[gpu].tokens_ahead

        able = [i for i, prefills in enumerate(self._prefills) if prefills != to_prefill]
        self._prefills[min(able, key=work)] = to_prefill
        self._lend()
        self._soft.roles_changed()
        self.num_changes += 1

    def _lend(self) -> None:
        """Prefill workers lend. Two workers both decode in their group, whatever their roles."""
        if len(self._prefills) > 2:
            self._decoders.lenders = {i for i, prefills in enumerate(self._prefills) if prefills}

    def _release(self, gpu: int) -> None:
        for request, num_tokens in self._decoders.take(gpu):
            to, now = self._least(), self.clock.now
            moves = self._soft.releases(self._site(gpu), self._site(to), now)
            if moves:
                self._move(request, num_tokens, to)
            else:
                self._join(request, num_tokens, gpu)

    def _take(self, gpu: int) -> None:
        """Move sequences to a prefill worker that has nothing to do."""
        full = max(self._decoding(), key=lambda i: self._sequences[i])
        idle_s = self.clock.now - self._prompts_ended_at.get(gpu, -inf)
        before = self._site(full)  # it spreads its steps while it has sequences
        staying = []
        running = self._decoders.take(full)
        for request, num_tokens in sorted(running, key=lambda each: -each[1]):
            there = replace(before, num_sequences=self._sequences[full])
            if self._soft.takes(self._site(gpu), there, idle_s):
                self._move(request, num_tokens, gpu)
            else:
                staying.append((request, num_tokens))
        for request, num_tokens in staying:
            self._at.pop(request)
            self._join(request, num_tokens, full)

    def _even(self) -> None:
        """Move sequences to GPUs that have much less to decode than another one; contexts are taken
        to be alike."""
        counts, now = self._sequences, self.clock.now
        weights = {str(gpu): float(counts[gpu]) for gpu in self._decoding()}
        at_once = MAX_TO_BALANCE if all(weights.values()) else MAX_AT_ONCE
        most = round(at_once * LOOK_S / MOVE_S)  # the coordinator looks after each move
        for full in map(int, self._balance.uneven(weights, now)):
            running = self._decoders.take(full)
            for request, num_tokens in sorted(running, key=lambda each: -each[1]):
                to = min(self._decoding(), key=lambda i: counts[i])
                if most and gains(1.0, num_tokens, counts[full], counts[to]):
                    most -= 1
                    self._move(request, num_tokens, to)
                else:
                    self._join(request, num_tokens, full)

    def _move(self, request: Request, num_tokens: int, to: int) -> None:
        """Let a sequence that was taken out of its GPU go on at another one."""
        source = self._at.pop(request)
        self._sequences[source] -= 1
        self._decoders.leave_step(source)
        self._sequences[to] += 1
        self.clock.after(MOVE_S, partial(self._join, request, num_tokens, to))

    def _site(self, gpu: int) -> Site:
        tokens_ahead = self._workers[gpu].tokens_ahead + self._queued()
        has_lenders = bool(self._decoders.lenders) and self._decoders.spreads(gpu)
        return Site(gpu, self._sequences[gpu], tokens_ahead, has_lenders, self._in_pair())

    def _in_pair(self) -> bool:
        """True if two workers compute steps together."""
        are_two = len(self._prefills) == 2
        return are_two and any(map(self._decoders.would_spread, self._decoding()))

    def _are_pair(self) -> bool:
        """True if they did lately."""
        if self._in_pair():
            self._paired_at = self.clock.now
        return self.clock.now - self._paired_at < PAIR_S

    # ---- as pools.py, with roles

    def _arrived(self, request: Request) -> None:
        self._arrived_tokens += request.num_new
        self._queued_at[request] = self.clock.now
        self.clock.after(self._soft.gather_s + LATER_S, self._place)
        super()._arrived(request)

    def _place(self) -> None:
        filled: set[int] = set()
        while self._queue and (worker := self._chosen(self._queue[0])) is not None:
            if worker.number not in filled and self._gathers(self._queue[0], worker):
                return
            filled.update(range(2) if self._in_pair() else [worker.number])
            request = self._queue.popleft()
            self._num_placed += 1
            worker.placed = self._num_placed
            worker.tokens_ahead += request.num_new
            worker.waiting.append(request)
            self._soft.note_prompt(worker.number, request.num_new, self.clock.now)
            if not self._prefills[worker.number]:
                self._sequences[worker.number] += 1
                self._helped.add(request)
            self._go_on(worker)

    def _gathers(self, request: Request, worker: Worker) -> bool:
        in_pair = self._in_pair()
        if not (any(self._prefills) or in_pair):
            return False
        slowed = self._sequences if in_pair else [self._sequences[worker.number]]
        there = Site(worker.number, max(slowed), worker.tokens_ahead)
        now, queued = self.clock.now, self._queued() // len(slowed)
        waited_s = now - self._queued_at[request]
        return self._soft.gathers(there, request.num_new, queued, waited_s, now)

    def _chosen(self, request: Request) -> Worker | None:
        """The worker for a prompt; None while it waits."""
        prefilling = [w for w in self._workers if self._prefills[w.number]]
        if not prefilling:
            return self._generating(request)
        best = min(prefilling, key=lambda w: (w.tokens_ahead, w.placed))
        num_waiting = best.tokens_ahead + self._queued() // len(prefilling)
        helper = min(
            (w for w in self._workers if not self._prefills[w.number]),
            key=lambda w: (self._sequences[w.number], w.tokens_ahead, w.placed),
        )
        there = Site(helper.number, self._sequences[helper.number], helper.tokens_ahead)
        if self._soft.helps(num_waiting, there, request.num_new, self.clock.now):
            return helper
        return best if best.has_room(request) else None

    def _generating(self, request: Request) -> Worker | None:
        """The worker for a prompt while all decode; None while it waits."""
        room = [w for w in self._workers if w.has_room(request)]
        return min(
            room, key=lambda w: (self._sequences[w.number], w.tokens_ahead, w.placed), default=None
        )

    def _decoding(self) -> Iterable[int]:
        return (i for i, prefills in enumerate(self._prefills) if not prefills)

    def _batch(self, worker: Worker, max_tokens: int) -> Batch:
        chunks, seconds = super()._batch(worker, max_tokens)
        self._speeds.note_batch(sum(chunk.num_tokens for chunk in chunks), seconds)
        return chunks, seconds

    def _computed(self, worker: Worker, batch: Iterable[Chunk]) -> list[Request]:
        self._prompts_ended_at[worker.number] = self.clock.now
        complete = super()._computed(worker, batch)
        for request in complete:
            self._speeds.note_prompt(request.input_len - request.cached_len)
        return complete

    def _decode(self, gpu: int, request: Request) -> None:
        """Decode a request whose prompt is computed: there, or at another worker."""
        to, wait_s = gpu, 0.0
        if request in self._helped:
            self._helped.remove(request)
            self._sequences[gpu] -= 1
        else:
            to = self._least()
            if self._soft.keeps(self._site(gpu), self._site(to), self.clock.now):
                to = gpu
            else:
                wait_s = self._node.handoff_s
        self._sequences[to] += 1
        self.clock.after(wait_s, partial(self._join, request, request.output_len - 1, to))

    def _join(self, request: Request, num_tokens: int, gpu: int) -> None:
        """Decode a sequence that is counted at a GPU."""
        self._at[request] = gpu

        def ended() -> None:
            self._sequences[self._at.pop(request)] -= 1
            self._ended(request)

        if num_tokens == 0:
            ended()
        else:
            self._decoders.join(gpu, num_tokens, ended, request.more_context, request)

    def _ended(self, request: Request) -> None:
        took_s = self.clock.now - request.first_token_at
        self._speeds.note_answer(took_s, request.output_len)
        super()._ended(request)
