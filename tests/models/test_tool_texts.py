"""Conversations with tools and schemas: their form, their arithmetic, their split."""

import json
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer

from coordinator.text.chat_template import ChatTemplate
from coordinator.text.qwen_parser import QwenParser
from coordinator.text.tool_events import Arguments, CallBegins
from models.recipe import mixture
from models.recipe.calculators import value_of
from models.recipe.chat_form import Message, Pieces, pieces_of
from models.recipe.definitions import Definition
from models.recipe.evaluate_tools import parsed
from models.recipe.json_examples import example
from models.recipe.problems import split_of
from models.recipe.stores import errands
from models.recipe.tool_loop import run, tasks

TINY = Path(__file__).parents[2] / "models/tiny"
CHAT = list[Message]


def conversations(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> list[tuple[CHAT, Sequence[Definition], Pieces]]:
    """Training conversations as messages, beside the pieces made of them."""
    seen: list[tuple[CHAT, Sequence[Definition], Pieces]] = []

    def record(messages: CHAT, tools: Sequence[Definition] = ()) -> Pieces:
        pieces = pieces_of(messages, tools)
        seen.append((messages, tools, pieces))
        return pieces

    monkeypatch.setattr(mixture, "pieces_of", record)
    rng = Random("texts")
    for _ in range(count):
        mixture.tool_chat(rng)
        mixture.schema_chat(rng)
    return seen


def test_training_texts_are_what_the_template_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate((TINY / "chat_template.jinja").read_text(), {})
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    for messages, tools, pieces in conversations(monkeypatch, 100):
        text = "".join(piece for piece, _ in pieces)
        whole = template.render(
            messages, add_generation_prompt=False, variables={"tools": list(tools)}
        )
        assert text + "\n" == whole
        thinks = bool(messages[-1].get("reasoning_content"))
        prompt = template.render(
            messages[:-1], variables={"tools": list(tools), "enable_thinking": thinks}
        )
        assert text.startswith(prompt)
        assert ids(text) == [i for piece, _ in pieces for i in ids(piece)]


def test_an_answer_that_a_grammar_begins_has_the_tokens_of_the_whole() -> None:
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    pieces = mixture.begun([("<think>\n\n</think>\n\n", 0.1), ('{"answer": 12}<|im_end|>', 1.0)])
    assert [weight for _, weight in pieces] == [0.1, 0.0, 1.0]
    text = "".join(piece for piece, _ in pieces)
    assert ids(text) == [i for piece, _ in pieces for i in ids(piece)]


def test_example_fits_its_schema() -> None:
    rng = Random("examples")
    for _ in range(200):
        question, answer = example(rng)
        begin, end = question["content"].find("{"), question["content"].rfind("}")
        schema = json.loads(question["content"][begin : end + 1])
        assert fits(json.loads(answer["content"]), schema)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "object":
            each = schema["properties"]
            return set(value) == set(each) and all(fits(value[k], s) for k, s in each.items())
        case "array":
            return all(fits(item, schema["items"]) for item in value)
        case "boolean" | "null" as kind:
            return value in {"boolean": (True, False), "null": (None,)}[kind]
        case kind:
            kinds = {"string": str, "integer": int, "number": (int, float)}
            return isinstance(value, kinds[kind])


def test_calls_are_read_back_as_they_were_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    for messages, tools, _ in conversations(monkeypatch, 60):
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        for message in messages:
            calls = [call["function"] for call in message.get("tool_calls", ())]
            for call in calls:
                assert set(call["arguments"]) == set(schemas[call["name"]]["properties"])
            if calls:
                [(text, _), *_] = pieces_of([{"role": "user", "content": ""}, message])[1:]
                back = parsed(text.split("</think>")[-1].removesuffix("<|im_end|>"), tools)
                assert [
                    (c["function"]["name"], json.loads(c["function"]["arguments"]))
                    for c in back["tool_calls"]
                ] == [(call["name"], call["arguments"]) for call in calls]


def test_parser_gives_events_of_a_call() -> None:
    parser = QwenParser({"add": {"properties": {"a": {"type": "integer"}}}})
    text = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    events = parser.push(text) + parser.flush()
    assert CallBegins(0, "add") in events
    assert "".join(e.text for e in events if isinstance(e, Arguments)) == '{"a": 1}'


def test_errands_end_with_the_right_number() -> None:
    for errand in islice(errands(Random("right"), "train"), 1000):
        problem = errand.problem
        for step in problem.steps:
            assert value_of(step.expression) == step.result
        given = [int(n) for n in re.findall(r"\d+", problem.question)]
        known = given + [fact.value for fact in errand.facts]
        for step in problem.steps:
            assert step.left in known, problem
            assert step.right in known, problem
            known.append(step.result)
        assert problem.final == (problem.steps[-1].result if problem.steps else known[-1])
        assert split_of(problem.question) == "train"


@pytest.mark.parametrize("text", ["2 ** 9", "__import__('os')", "1 / 0", "a + 1", "1 +", "(1, 2)"])
def test_calculator_takes_nothing_but_arithmetic(text: str) -> None:
    with pytest.raises(ValueError, match=r"arithmetic|cannot"):
        value_of(text)


def test_held_out_tasks_are_never_trained_on_and_can_be_solved() -> None:
    found = tasks(100)
    assert len({task.question for task in found}) == 100
    assert all(split_of(task.question) == "heldout" for task in found)
    assert {task.kind for task in found} == {
        f"{names} tools, {work}"
        for names in ("plain", "other")
        for work in ("lookup", "calculation")
    }


def test_loop_executes_calls_until_the_answer() -> None:
    [task] = [t for t in tasks(40) if t.kind == "plain tools, lookup"][:1]
    turns: list[dict[str, Any]] = []
    fact = task.box.facts[0]

    def call(name: str, arguments: dict[str, Any]) -> Message:
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": function}],
        }

    answers = [
        call("lookup", {"name": fact.name}),
        call("calculator", {"expression": "(3 + 4) * 2"}),
        call("calculator", {"wrong": "3"}),
        {"role": "assistant", "content": "#### 14"},
    ]

    def ask(messages: Sequence[Message], tools: Sequence[Definition]) -> Message:
        turns[:] = list(messages)
        return answers.pop(0)

    outcome = run(ask, task)
    assert (outcome.text, outcome.num_calls, outcome.num_failed) == ("#### 14", 3, 1)
    replies = [message["content"] for message in turns if message["role"] == "tool"]
    assert replies[:2] == [str(fact.value), "14"]
    assert replies[2].startswith("Error")
