"""An agent loop over the recipe's tools, with whatever answers one turn after the other."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from models.recipe.definitions import Definition
from models.recipe.problems import drill, split_of, word_problems
from models.recipe.stores import Errand, errands
from models.recipe.tool_chats import MAX_STEPS
from models.recipe.toolbox import Toolbox, plain_toolbox, toolbox

Message = dict[str, Any]
Ask = Callable[[Sequence[Message], Sequence[Definition]], Message]
"""Messages and tools to the assistant's next message, all as the Chat Completions API has them."""

MAX_TURNS = 10


@dataclass(frozen=True)
class Task:
    """A held-out problem with the tools to solve it."""

    question: str
    final: int
    box: Toolbox
    kind: str


@dataclass(frozen=True)
class Outcome:
    """The last text, and how the model came to it."""

    text: str
    num_calls: int
    num_failed: int


def tasks(count: int, seed: str = "heldout-tools-1") -> list[Task]:
    """The first `count` distinct held-out tasks of a seed. Every other one has the tools
    calculator(expression) and lookup(name), the rest any others; half need data looked up."""
    rng = Random(seed)
    found: dict[str, Task] = {}
    for i, job in enumerate(_jobs(rng)):
        problem = job.problem
        if i % 4 < 2:
            box, names = plain_toolbox(job.facts), "plain"
        else:
            looks_up, others = bool(job.facts) or rng.random() < 0.5, rng.choice((0, 0, 1))
            box = toolbox(rng, job.facts, calculates=True, looks_up=looks_up, others=others)
            names = "other"
        kind = f"{names} tools, {'lookup' if job.facts else 'calculation'}"
        found.setdefault(problem.question, Task(problem.question, problem.final, box, kind))
        if len(found) == count:
            break
    return list(found.values())


def run(ask: Ask, task: Task) -> Outcome:
    """Ask, execute the calls, ask again, until a turn has no call or MAX_TURNS are over."""
    messages: list[Message] = [{"role": "user", "content": task.question}]
    num_calls = num_failed = 0
    for _ in range(MAX_TURNS):
        turn = ask(messages, task.box.definitions)
        messages.append(turn)
        calls = turn.get("tool_calls") or ()
        if not calls:
            return Outcome(turn.get("content") or "", num_calls, num_failed)
        for call in calls:
            function = call["function"]
            reply = task.box.run(function["name"], json.loads(function["arguments"]))
            num_calls += 1
            num_failed += reply.startswith("Error")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": reply})
    return Outcome("", num_calls, num_failed)


def _jobs(rng: Random) -> Iterator[Errand]:
    """Errands and problems without one in turn, of the latter every fifth a drill."""
    to_look_up, plain = errands(rng, "heldout"), word_problems(rng, "heldout")
    while True:
        yield next(to_look_up)
        problem = next(plain)
        while len(problem.steps) > MAX_STEPS:
            problem = next(plain)
        if rng.random() < 0.2:
            problem = drill(rng)
            while split_of(problem.question) != "heldout":
                problem = drill(rng)
        yield Errand(problem, ())
