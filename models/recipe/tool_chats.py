"""Conversations with tools: what the model calls, what comes back, and what it answers."""

from collections.abc import Sequence
from random import Random
from typing import Any

from models.recipe.chat_form import Message
from models.recipe.definitions import Definition, Style, named
from models.recipe.problems import drill, split_of, word_problems
from models.recipe.schemas import fields_for
from models.recipe.stores import Errand, Fact, errands
from models.recipe.toolbox import Toolbox, plain_toolbox, toolbox
from models.recipe.work import Problem, Step

FINISH = ("final_result", "final_result", "Answer", "answer", "respond", "submit", "Result")
ENDINGS = (
    "Gives the final answer.",
    "The final answer to the problem.",
    "Call this at the end with the answer.",
    "The final response, which ends the conversation.",
)
MAX_STEPS = 4


def errand(rng: Random) -> Errand:
    """A training problem, the data of some to be looked up."""
    kind = rng.random()
    if kind < 0.5:
        return next(errands(rng, "train"))
    problems = word_problems(rng, "train")
    while True:
        problem = next(problems) if kind < 0.9 else drill(rng)
        if len(problem.steps) <= MAX_STEPS and split_of(problem.question) == "train":
            return Errand(problem, ())


def tools_for(rng: Random, facts: tuple[Fact, ...]) -> Toolbox:
    """Tools with which the problem can be solved, sometimes with ones that are of no use."""
    if rng.random() < 0.2:
        return plain_toolbox(facts)
    kind = rng.random()
    if kind < 0.12 and not facts:  # none that helps: the model works by itself
        return toolbox(rng, facts, calculates=False, looks_up=kind < 0.04, others=rng.randint(1, 3))
    calculates = not facts or kind > 0.1
    looks_up = bool(facts) or kind > 0.5
    return toolbox(
        rng, facts, calculates=calculates, looks_up=looks_up, others=rng.choice((0, 0, 0, 1, 2))
    )


def solution(rng: Random, job: Errand, box: Toolbox, *, finish: bool = False) -> list[Message]:
    """The turns after the question. `finish`: the model will hand its answer to a tool."""
    messages: list[Message] = []
    together = rng.random() < 0.75
    if box.lookup:
        calls = [box.lookup.call(fact) for fact in job.facts]
        thoughts = [f"I need the {fact.what} of {fact.name}." for fact in job.facts]
        messages += asked(box, calls, thoughts, together)
    if box.calculator:
        for group in grouped(job.problem.steps, parallel=rng.random() < 0.3):
            calls = [box.calculator.call(step) for step in group]
            thoughts = [f"I need {step.expression}." for step in group]
            messages += asked(box, calls, thoughts, together=True)
    if not finish:
        lines = job.problem.lines[-1:] if box.calculator else job.problem.lines
        text = "\n".join((*lines, f"#### {job.problem.final}"))
        messages.append(said(f"The answer is {job.problem.final}.", content=text))
    return messages


def asked(
    box: Toolbox, calls: Sequence[dict[str, Any]], thoughts: Sequence[str], together: bool
) -> list[Message]:
    """Turns with calls, each followed by the replies; all calls in one turn if `together`."""
    if not together:
        return [
            message
            for call, thought in zip(calls, thoughts, strict=True)
            for message in asked(box, [call], [thought], True)
        ]
    if not calls:
        return []
    turn = said(" ".join(thoughts), tool_calls=[{"function": call} for call in calls])
    replies = [box.run(call["name"], call["arguments"]) for call in calls]
    return [turn, *({"role": "tool", "content": reply} for reply in replies)]


def said(thought: str, **values: Any) -> Message:
    """A turn of the assistant with the thought that may come before it."""
    return {"role": "assistant", "reasoning_content": thought, **values}


def grouped(steps: Sequence[Step], *, parallel: bool) -> list[list[Step]]:
    """Steps one by one; if `parallel`, adjacent steps that need no result of each other
    together."""
    groups: list[list[Step]] = []
    for step in steps:
        last = groups[-1] if groups else []
        needs = any(done.result in (step.left, step.right) for done in last)
        if parallel and last and not needs:
            last.append(step)
        else:
            groups.append([step])
    return groups


def finishing(rng: Random, problem: Problem, worked: bool) -> tuple[Definition, Message]:
    """A tool that takes the answer, and the call of it."""
    fields = fields_for(rng, problem, worked)
    name = named(rng, FINISH)
    described = Style(rng).function(
        name, rng.choice(ENDINGS), [f for f, _ in fields], describe=True
    )
    call = {"name": name, "arguments": {field.name: value for field, value in fields}}
    return described, said("I have the answer.", tool_calls=[{"function": call}])
