"""Requests whose right answers are known: asked beforehand, on a stack that nothing disturbs."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import httpx

from tests.e2e.problems import HELDOUT

MODEL_IDS = 900
MIN_MARGIN_NATS = 1e-3
"""On a CPU a row's logits differ by some 1e-5 with the rows beside it (docs/performance.md): a
greedy choice between two tokens closer than this has no right answer."""
ROUNDS = 3
_PENALTIES: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3},
    {"frequency_penalty": 0.4},
)


@dataclass(frozen=True)
class Case:
    """A body for ``/v1/completions`` without ``stream``, and the token ids of its answer."""

    name: str
    body: dict[str, Any]
    token_ids: tuple[int, ...] = ()


class NoCases(Exception):
    """The quiet stack gave no answers that can be compared with."""


def drawn(draw: random.Random, number: int) -> Case:
    """Greedy and sampled by turns, every third one with penalties; texts, and random ids."""
    sampled = bool(number % 2)
    body: dict[str, Any] = {
        "prompt": draw.choice(HELDOUT)["question"]
        if number % 4 < 2
        else [draw.randrange(MODEL_IDS) for _ in range(draw.choice([1, 17, 64, 65, 200, 330]))],
        "max_tokens": draw.randint(16, 120),
        "temperature": 0.8 if sampled else 0.0,
        "seed": draw.randrange(1 << 31),
        "ignore_eos": True,
        "return_token_ids": True,
        **_PENALTIES[number % len(_PENALTIES)],
    }
    if sampled:
        body |= {"top_p": 0.95} if number % 3 else {"top_k": 20}
    return Case(f"{number}-{'sampled' if sampled else 'greedy'}", body)


async def prepared(http: httpx.AsyncClient, seed: int, count: int) -> tuple[list[Case], int]:
    """``count`` cases with their answers, and how many were left out because the choice of a token
    depended on rounding: a greedy margin below MIN_MARGIN_NATS, or another answer in one of
    ROUNDS in company than alone. Raises NoCases."""
    draw = random.Random(seed)
    candidates = [drawn(draw, number) for number in range(2 * count)]
    alone = [await _answer(http, case) for case in candidates]
    stable = [answer is not None for answer in alone]
    for _ in range(ROUNDS):
        order = draw.sample(range(len(candidates)), len(candidates))
        answers = await asyncio.gather(*(_answer(http, candidates[i]) for i in order))
        for i, answer in zip(order, answers, strict=True):
            stable[i] &= answer == alone[i]
    found = [
        Case(case.name, case.body, answer)
        for case, answer, same in zip(candidates, alone, stable, strict=True)
        if same and answer is not None
    ]
    if len(found) < count:
        raise NoCases(f"{len(found)} of {len(candidates)} answers were stable; {count} are needed")
    return found[:count], stable.count(False)


async def _answer(http: httpx.AsyncClient, case: Case) -> tuple[int, ...] | None:
    """None where a greedy choice was too close to call."""
    greedy = case.body["temperature"] == 0.0
    body = case.body | ({"logprobs": 2} if greedy and "prompt" in case.body else {})
    answer = await http.post("/v1/completions", json=body)
    answer.raise_for_status()
    (choice,) = answer.json()["choices"]
    has_penalties = any(name.endswith("penalty") for name in case.body)
    if greedy and not has_penalties:
        for top in choice["logprobs"]["top_logprobs"]:
            best = sorted(top.values(), reverse=True)
            if len(best) > 1 and best[0] - best[1] < MIN_MARGIN_NATS:
                return None
    return tuple(choice["token_ids"])
