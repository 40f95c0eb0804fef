"""Answers to a JSON schema: the whole answer, or the arguments of a call that ends the work."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from models.recipe import words
from models.recipe.definitions import Field, Style, named
from models.recipe.work import Problem

RESULT = ("answer", "answer", "answer", "result", "total", "value", "number", "final_answer")
STEPS = ("steps", "steps", "work", "equations", "reasoning_steps")
PERSON = ("name", "name", "person", "who")
PROMPTS = (
    "Answer as JSON that matches this schema: {}",
    "Respond with JSON only. Schema: {}",
    "Return a JSON object of this schema:\n{}",
    "JSON schema:\n{}\nThe answer must be a JSON object that matches the schema.",
)
PEOPLE = frozenset(words.HE + words.SHE)
Value = Callable[[Problem], Any]


def person_in(problem: Problem) -> str | None:
    """The first name in the question."""
    for word in problem.question.replace("'", " ").replace(".", " ").split():
        if word in PEOPLE:
            return word
    return None


def fields_for(rng: Random, problem: Problem, worked: bool) -> list[tuple[Field, Any]]:
    """The properties of an answer with their values, in the schema's order.

    The equations come before the result unless the work is done elsewhere (`worked`) or is a
    single step: the model has no other place for it.
    """
    names: list[str] = []

    def field(choices: tuple[str, ...], schema: dict[str, Any], description: str) -> Field:
        names.append(named(rng, choices, names))
        return Field(names[-1], schema, description)

    found: list[tuple[Field, Any]] = []
    steps = [step.equation for step in problem.steps]
    if steps and (rng.random() < 0.3 or (len(steps) > 1 and not worked)):
        array = {"type": "array", "items": {"type": "string"}}
        found.append((field(STEPS, array, "The equations, one for each step."), steps))
    number = {"type": "number" if rng.random() < 0.3 else "integer"}
    found.append((field(RESULT, number, "The answer, a number."), problem.final))
    if (person := person_in(problem)) and rng.random() < 0.25:
        name = field(PERSON, {"type": "string"}, "The first person in the problem.")
        found.insert(rng.choice((0, len(found))), (name, person))
    return found


def schema_prompt(rng: Random, fields: list[Field]) -> str:
    """The text that tells the model which JSON is wanted."""
    if rng.random() < 0.15:
        return f"Answer as a JSON object with the keys {', '.join(f.name for f in fields)}."
    if len(fields) == 1 and rng.random() < 0.1:
        return f"Answer in JSON as {{{json.dumps(fields[0].name)}: number}}."
    schema = Style(rng).object(fields, describe=rng.random() < 0.5)
    return rng.choice(PROMPTS).format(json.dumps(schema))
