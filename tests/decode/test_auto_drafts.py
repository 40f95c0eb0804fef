"""How many drafts ``auto`` chooses, and what it gives in a model of a worker: steps that cost what
they did on an H200, drafts accepted by lot, and each step's outcome known one step late."""

import random

import pytest

from decode.speculation import (
    COSTS,
    MAX_PAUSE,
    MIN_PAUSE,
    Acceptance,
    AutoDrafts,
    best_num,
)

SMALL = {1: (1.3, 1.6, 1.9), 8: (2.1, 2.8, 3.5)}
PLAIN_MS = {1: 2.32, 2: 2.95, 4: 3.89, 8: 5.61, 16: 8.56, 64: 17.6, 256: 30.0}
KV_MS = 0.025
"""Of the draft layer's KV, at the most."""


def note(policy: AutoDrafts, num_accepted: int, times: int) -> None:
    for _ in range(times):
        policy.verified(3, num_accepted)


class Worker:
    """``batch`` sequences, whose drafts are accepted with the probability ``right``."""

    def __init__(self, batch: int, right: float, seed: int = 0) -> None:
        self.batch, self.right, self.draw = batch, right, random.Random(seed)
        self.policy = AutoDrafts(3, COSTS["cuda"])
        size = min((size for size in COSTS["cuda"] if size >= batch), default=0)
        self.costs = (1.0, *COSTS["cuda"].get(size, ()))
        self.plain_ms = PLAIN_MS[batch]
        self.chosen = [0]
        self.under_way: list[tuple[int, int]] = []

    def run(self, num_steps: int) -> float:
        """Tokens a second over those without a draft layer."""
        milliseconds = num_tokens = 0.0
        for _ in range(num_steps):
            made = self.chosen[-1]
            self.chosen.append(self.policy.num_next(self.batch))
            # Of a step without drafts the policy learns nothing: one sequence stands for all.
            outcomes = [(made, self.accepted(made)) for _ in range(self.batch if made else 1)]
            # A step is the verification of what the one before has made, and what it makes.
            milliseconds += self.plain_ms * self.costs[max(made, self.chosen[-1])]
            milliseconds += 0.0 if self.chosen[-1] else KV_MS
            num_tokens += self.batch + sum(num for _, num in outcomes)
            for made, num_accepted in self.under_way:
                self.policy.verified(made, num_accepted)
            self.under_way = outcomes
        return num_tokens / self.batch * self.plain_ms / milliseconds

    def accepted(self, made: int) -> int:
        num = 0
        while num < made and self.draw.random() < self.right:
            num += 1
        return num


@pytest.mark.parametrize("batch", PLAIN_MS)
def test_refused_drafts_cost_at_most_two_percent(batch: int) -> None:
    worker = Worker(batch, right=0.0)
    assert worker.run(300) >= 0.978, "with the start"
    assert worker.run(3000) >= 0.98
    assert worker.run(20_000) >= 0.985


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("right", [0.8, 0.9])
def test_accepted_drafts_give_nearly_what_the_best_number_gives(batch: int, right: float) -> None:
    found = [Worker(batch, right, seed).run(3000) for seed in range(5)]
    costs = COSTS["cuda"][batch]
    tokens = [sum(right**i for i in range(num + 2)) for num in range(len(costs))]
    best = max(num / cost for num, cost in zip(tokens, costs, strict=True))
    assert sorted(found)[2] >= 0.95 * best


def test_drafts_begin_again_when_they_are_accepted_again() -> None:
    worker = Worker(1, right=0.0)
    worker.run(10_000)
    worker.right = 0.9
    worker.run(MAX_PAUSE + 200)
    assert worker.run(500) > 1.6


def test_a_larger_load_than_drafts_pay_for_leaves_the_evidence_alone() -> None:
    policy = AutoDrafts(3, SMALL)
    note(policy, 1, 500)
    assert policy.num_next(1) == 1
    assert [policy.num_next(8) for _ in range(2 * MIN_PAUSE)] == [0] * 2 * MIN_PAUSE
    assert policy.num_next(9) == 0, "no such step was measured"
    assert policy.num_next(1) == 1


def test_more_drafts_the_more_are_accepted() -> None:
    policy = AutoDrafts(3, SMALL)
    assert policy.num_next(1) == 1, "the first drafts are a trial"
    note(policy, 3, 5000)
    assert policy.num_next(1) == 3
    note(policy, 1, 20_000)
    assert policy.num_next(1) == 1


def test_pauses_grow_until_drafts_have_paid_for_a_while() -> None:
    policy, pauses = AutoDrafts(3, SMALL), []

    def refuse(times: int) -> None:
        note(policy, 0, times)
        pauses.append(next(i for i in range(2 * MAX_PAUSE) if policy.num_next(1)))

    for _ in range(5):
        refuse(20)
    assert pauses == [512, 1024, 2048, 4096, 4096]
    assert (MIN_PAUSE, MAX_PAUSE) == (512, 4096)
    note(policy, 3, 5000)
    refuse(20_000)
    refuse(20)
    assert pauses[-1] == MIN_PAUSE


def test_a_position_without_evidence_is_like_the_one_before() -> None:
    acceptance = Acceptance(3)
    for nth in range(4000):
        acceptance.note(1, nth % 2)
    assert acceptance.rates() == pytest.approx([0.5, 0.25, 0.125], abs=0.01)
    for _ in range(4000):
        acceptance.note(3, 1)
    assert acceptance.rates()[1] < 0.01


def test_the_number_with_the_most_tokens_for_its_cost() -> None:
    assert best_num((1.3, 1.6, 1.9), (0.9, 0.8, 0.7)) == 3
    assert best_num((1.3, 1.6, 1.9), (0.5, 0.25, 0.125)) == 1
    assert best_num((1.3, 1.6), (0.3, 0.1)) == 0
    assert best_num((), (0.9,)) == 0
