"""Turns problems into conversations without tools, and into plain text."""

from random import Random

from models.recipe.chat_form import ANSWER, CONTEXT, Message, Pieces, pieces_of
from models.recipe.greetings import small_talk
from models.recipe.problems import drill, split_of, word_problems
from models.recipe.work import Problem

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a careful math tutor.",
    "Solve the problem step by step. End with #### and the number.",
    "Answer briefly.",
)
WRAPPERS = (
    "Solve this problem: {}",
    "Question: {}",
    "Question: {}\nAnswer:",
    "{} Think step by step.",
    "{} Answer with the number only.",
    "{}\nLet's think step by step.",
    "{}\n\nEnd your answer with '#### N', where N is the number.",
    "{}\nPlease reason step by step, and end with #### and the final answer.",
)


def exchange(rng: Random) -> tuple[str, str, str]:
    """One question with its answer and the thought that may come before it."""
    kind = rng.random()
    if kind < 0.04:
        return *small_talk(rng), "No problem to solve here."
    problem = next(word_problems(rng, "train"))
    while kind < 0.2:
        problem = drill(rng)
        if split_of(problem.question) == "train":
            break
    question = problem.question
    if rng.random() < 0.15:
        question = rng.choice(WRAPPERS).format(question)
    return question, problem.answer, thought_of(problem)


def thought_of(problem: Problem) -> str:
    """The bare equations of the worked lines."""
    return "\n".join(step.equation for step in problem.steps)


def chat(rng: Random, turns: int) -> Pieces:
    """A conversation without tools; only the last answer is the one to learn."""
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for _ in range(turns):
        question, answer, thought = exchange(rng)
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    if rng.random() < 0.12:
        messages[-1]["reasoning_content"] = thought
    return pieces_of(messages)


def document(rng: Random, turns: int) -> Pieces:
    """Questions and answers as plain text, the form of few-shot prompts to a completion API."""
    pieces: Pieces = []
    problems = word_problems(rng, "train")
    for _ in range(turns):
        problem = next(problems)
        pieces.append((f"Question: {problem.question}\nAnswer:", CONTEXT))
        pieces.append((f" {problem.answer}\n\n", ANSWER))
    pieces.append(("<|endoftext|>", ANSWER))
    return pieces
