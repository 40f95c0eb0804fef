"""Seeded grade-school word problems with worked answers: `python -m models.recipe.problems`.

The split is by a hash of the question itself, so no held-out question can occur in training,
whatever the seeds.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Literal

from models.recipe import measures, money
from models.recipe.stories import story
from models.recipe.work import Op, Problem, Work

Split = Literal["train", "heldout"]

HELDOUT_SEED = "heldout-1"
HELDOUT_ONE_IN = 16

TEMPLATES: tuple[Callable[[Random], Problem], ...] = (
    *(story,) * 8,
    money.shopping,
    money.change,
    money.wages,
    money.saving,
    money.discount,
    money.bill,
    measures.ages,
    measures.distance,
    measures.trips,
    measures.production,
    measures.rectangle,
    measures.reading,
    measures.farm,
    measures.seats,
    measures.portion,
    measures.compare,
    measures.months,
)


def split_of(question: str) -> Split:
    """Which side a question belongs to, from its text alone."""
    digest = blake2b(question.encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest) % HELDOUT_ONE_IN == 0 else "train"


def word_problems(rng: Random, split: Split) -> Iterator[Problem]:
    """Endless word problems of one side of the split."""
    while True:
        problem = rng.choice(TEMPLATES)(rng)
        if split_of(problem.question) == split:
            yield problem


def drill(rng: Random) -> Problem:
    """Plain arithmetic, asked in a few ways: "What is 17 + 25?"."""
    ops: tuple[Op, ...] = ("+", "-", "*", "/")
    op = rng.choice(ops)
    size = rng.choice((10, 100, 500))
    left, right = rng.randint(1, size), rng.randint(1, size)
    if op == "-":
        left, right = max(left, right), min(left, right)
    elif op in "*/":
        left, right = rng.randint(2, 99), rng.randint(2, 12)
        if op == "*" and rng.random() < 0.5:
            left, right = right, left
        elif op == "/":
            left *= right
    work = Work()
    work.step("{}", left, op, right)
    asked = f"{left} {op} {right}" if rng.random() < 0.7 else f"{left}{op}{right}"
    spoken = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[op]
    return work.solves(
        rng.choice(
            (
                f"What is {asked}?",
                f"What is {left} {spoken} {right}?",
                f"Compute {asked}.",
                f"Compute {asked}",
                f"Calculate {asked}.",
                f"How much is {asked}?",
                f"{asked} = ?",
                f"{asked}=",
                asked,
            )
        )
    )


def heldout(count: int, seed: str = HELDOUT_SEED) -> list[Problem]:
    """The first `count` distinct held-out problems of a seed."""
    found: dict[str, Problem] = {}
    for problem in word_problems(Random(seed), "heldout"):
        found.setdefault(problem.question, problem)
        if len(found) == count:
            break
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", default=HELDOUT_SEED)
    parser.add_argument("--out", type=Path, default=Path("models/heldout.jsonl"))
    args = parser.parse_args()
    with args.out.open("w") as file:
        for p in heldout(args.count, args.seed):
            row = {"question": p.question, "answer": p.answer, "final": p.final}
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
