"""Simulates pools that change: each worker computes prompts or decodes, as a policy decides. Pure.

As in pools.py, and every ``LOOK_S`` the policy of the coordinator (core/pool_policy.py) is asked. A
decode worker that shall compute prompts gives its sequences to the others, which go on ``MOVE_S``
later. A prefill worker that shall decode first computes the prompts that it has.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from bench.predict.pools import CONTEXT_LEN, Node, Request, Simulation, Worker
from bench.setups import Setup
from coordinator.core.pool_policy import LOOK_S, PoolLoad, PoolPolicy, PoolTargets
from decode.spread_table import between

MOVE_S = 0.03
BATCH_TOKENS = 8_192


@dataclass(frozen=True)
class Changing:
    """A set-up whose workers change their roles. ``first_prefill`` of them begin with prompts."""

    num_workers: int
    first_prefill: int
    targets: PoolTargets

    @property
    def name(self) -> str:
        return f"auto:{self.num_workers}"

    def policy(self, node: Node) -> PoolPolicy:
        """The policy, which knows the times of the node."""
        tok_s = BATCH_TOKENS / between(node.prefill_s, BATCH_TOKENS)
        return PoolPolicy(
            self.targets, lambda: tok_s, lambda rows: node.steps.token_s([rows], ())[0]
        )


def replay_changing(node: Node, setup: Changing, due: Iterable[tuple[float, Request]]) -> int:
    """As ``pools.replay``; returns how many roles changed."""
    run = _Run(node, setup)
    for at_s, request in due:
        run.num_open += 1
        run.clock.after(at_s, partial(run.send, request))
    run.clock.after(LOOK_S, run.tick)
    run.clock.run()
    return run.num_changes


class _Run(Simulation):
    def __init__(self, node: Node, setup: Changing) -> None:
        number = setup.num_workers
        super().__init__(node, Setup(number, number), self._one_ended)
        self._policy = setup.policy(node)
        self._prefills = [i < setup.first_prefill for i in range(number)]
        self._at: dict[Request, int] = {}
        self._arrived_tokens = 0
        self.num_open = 0
        self.num_changes = 0

    def tick(self) -> None:
        """Ask the policy, and change a role."""
        number, prefill = len(self._prefills), sum(self._prefills)
        waiting = sum(r.num_new for r in self._queue) + sum(w.tokens_ahead for w in self._workers)
        load = PoolLoad(
            prefill, number - prefill, waiting, self._arrived_tokens, sum(self._sequences)
        )
        self._arrived_tokens = 0
        wanted = self._policy.decide(load, self.clock.now)
        if wanted != prefill:
            self._change(to_prefill=wanted > prefill)
        self._place()
        if self.num_open:
            self.clock.after(LOOK_S, self.tick)

    def _change(self, *, to_prefill: bool) -> None:
        def work(gpu: int) -> int:
            return self._sequences[gpu] if to_prefill else self._workers[gpu].tokens_ahead

        able = [i for i, prefills in enumerate(self._prefills) if prefills != to_prefill]
        gpu = min(able, key=work)
        self._prefills[gpu] = to_prefill
        self.num_changes += 1
        if to_prefill:
            for request, num_tokens in self._decoders.take(gpu):
                self.clock.after(MOVE_S, partial(self._go_on, request, num_tokens))
        elif self._workers[gpu].launched:
            self._decoders.pause(gpu)

    def _go_on(self, request: Request, num_tokens: int) -> None:
        self._sequences[self._at.pop(request)] -= 1
        self._join(request, num_tokens)

    # ---- as pools.py, with roles

    def _arrived(self, request: Request) -> None:
        self._arrived_tokens += request.num_new
        super()._arrived(request)

    def _may_compute(self, worker: Worker) -> bool:
        return self._prefills[worker.number]

    def _launch(self, worker: Worker) -> None:
        super()._launch(worker)
        if not worker.launched and not self._prefills[worker.number]:
            self._decoders.resume(worker.number)

    def _decoding(self) -> Iterable[int]:
        return (i for i, prefills in enumerate(self._prefills) if not prefills)

    def _hand_off(self, request: Request) -> None:
        self._join(request, request.output_len - 1)

    def _join(self, request: Request, num_tokens: int) -> None:
        gpu = self._least()
        self._sequences[gpu] += 1
        self._at[request] = gpu

        def ended() -> None:
            self._sequences[self._at.pop(request)] -= 1
            request.ended_at = self.clock.now
            self._ended(request)

        if num_tokens == 0:
            ended()
        else:
            more = request.input_len + request.output_len // 2 - CONTEXT_LEN
            self._decoders.join(gpu, num_tokens, ended, more, request)

    def _one_ended(self, _: Request) -> None:
        self.num_open -= 1
