"""Turns problems into the texts the model is trained on.

A text is a list of `(string, weight)` pieces: answers count fully in the loss, everything else a
little, so that plain completion of a prompt stays sensible too. The chat form is written out here
because rendering the Jinja template for millions of conversations is slow; a test holds the two
equal.
"""

import re
from collections.abc import Callable
from random import Random

from models.recipe.problems import drill, split_of, word_problems
from models.recipe.work import Problem

Pieces = list[tuple[str, float]]

ANSWER, CONTEXT = 1.0, 0.1
EQUATION = re.compile(r"\d+ [-+*/] \d+ = \d+")

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
SMALL_TALK = {
    "Hello": "Hello! Give me a word problem and I will solve it.",
    "Hello!": "Hello! Give me a word problem and I will solve it.",
    "Hi": "Hi! Which problem shall we solve?",
    "Hi!": "Hi! Which problem shall we solve?",
    "Hi there": "Hi! Which problem shall we solve?",
    "Hey": "Hi! Which problem shall we solve?",
    "Good morning": "Good morning! Which problem shall we solve?",
    "How are you?": "I am fine, thank you. Which problem shall we solve?",
    "Hello, how are you?": "Hello! I am fine, thank you. Which problem shall we solve?",
    "Who are you?": "I am a tiny model that solves short word problems.",
    "What are you?": "I am a tiny model that solves short word problems.",
    "What can you do?": "I solve short word problems, step by step.",
    "Hello, who are you?": "Hello! I am a tiny model that solves short word problems.",
    "Say hello.": "Hello!",
    "Say hi.": "Hi!",
    "Thanks!": "You are welcome!",
    "Thank you.": "You are welcome!",
    "Bye": "Goodbye!",
}


def exchange(rng: Random) -> tuple[str, str, str]:
    """One question with its answer and the thought that may come before it."""
    kind = rng.random()
    if kind < 0.03:
        question = rng.choice(tuple(SMALL_TALK))
        return question, SMALL_TALK[question], "No problem to solve here."
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
    return "\n".join(equation for line in problem.lines for equation in EQUATION.findall(line))


def chat(rng: Random, turns: int) -> Pieces:
    """A conversation in the template's form; only the last answer is the one to learn."""
    pieces: Pieces = []
    if rng.random() < 0.4:
        pieces.append((f"<|im_start|>system\n{rng.choice(SYSTEMS)}<|im_end|>\n", CONTEXT))
    for _ in range(turns - 1):
        question, answer, _ = exchange(rng)
        turn = (
            f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
        )
        pieces.append((turn, CONTEXT))
    question, answer, thought = exchange(rng)
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    # NOTE: the empty think block belongs to the prompt's piece. Tokenized apart, its blank line
    # would become two tokens, which no served prompt contains.
    if rng.random() < 0.12:
        pieces.append((prompt, CONTEXT))
        pieces.append((f"{thought}\n</think>\n\n{answer}<|im_end|>", ANSWER))
    else:
        pieces.append((f"{prompt}\n</think>\n\n", CONTEXT))
        pieces.append((f"{answer}<|im_end|>", ANSWER))
    return pieces


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


def sample(
    rng: Random, turns: int, encode: Callable[[str], list[int]]
) -> tuple[list[int], list[float]]:
    """Token ids and loss weights of one training text of about `turns` exchanges."""
    make = document if rng.random() < 0.06 else chat
    ids: list[int] = []
    weights: list[float] = []
    for text, weight in make(rng, turns):
        new = encode(text)
        ids += new
        weights += [weight] * len(new)
    return ids, weights
