"""Requests whose right answers are known: asked beforehand, on a stack that nothing disturbs."""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import httpx

from tests.e2e.problems import HELDOUT

MODEL_IDS = 900
MIN_MARGIN_NATS = 1e-3
"""On a CPU a row's logits differ by some 1e-5 with the rows beside it (docs/performance.md): a
greedy choice between two tokens closer than this has no right answer."""
DRAWN_FOR_CLEAR = 20
MIN_TOKENS = 12
"""A greedy answer is compared up to its first close choice if that leaves so many tokens."""
ROUNDS = 3
FEW = 8
"""Requests at once whose answers the others are compared with."""
LONGEST = 120
"""The most tokens of an answer."""
_PENALTIES: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3},
    {"frequency_penalty": 0.4},
)


@dataclass(frozen=True)
class Case:
    """A body for ``/v1/completions`` without ``stream``, the token ids of its answer, and by how
    many nats each greedy choice was clear, where that is known."""

    name: str
    body: dict[str, Any]
    token_ids: tuple[int, ...] = ()
    margins: tuple[float, ...] = ()

    def first_difference(self, token_ids: Sequence[int]) -> int:
        """Index of the first of ``token_ids`` that differs from the answer's; the number of tokens
        compared if none does."""
        pairs = list(zip(token_ids, self.token_ids, strict=False))
        return next((i for i, (came, expected) in enumerate(pairs) if came != expected), len(pairs))

    def clear_by(self, index: int) -> str:
        """By how much the choice of the token at ``index`` was clear, as the end of a sentence; ""
        if that is not known."""
        return f", clear by {self.margins[index]:.3f} nats" if self.margins[index:] else ""


class NoCases(Exception):
    """The quiet stack gave no answers that can be compared with."""


def drawn(draw: random.Random, number: int, longest: int = LONGEST) -> Case:
    """Greedy and sampled by turns, every third one with penalties; texts, and random ids."""
    sampled = bool(number % 2)
    body: dict[str, Any] = {
        "prompt": draw.choice(HELDOUT)["question"]
        if number % 4 < 2
        else [draw.randrange(MODEL_IDS) for _ in range(draw.choice([1, 17, 64, 65, 200, 330]))],
        "max_tokens": draw.randint(16, longest),
        "temperature": 0.8 if sampled else 0.0,
        "seed": draw.randrange(1 << 31),
        "ignore_eos": True,
        "return_token_ids": True,
        **_PENALTIES[number % len(_PENALTIES)],
    }
    if sampled:
        body |= {"top_p": 0.95} if number % 3 else {"top_k": 20}
    return Case(f"{number}-{'sampled' if sampled else 'greedy'}", body)


async def prepared(
    http: httpx.AsyncClient,
    seed: int,
    count: int,
    margin_nats: float = MIN_MARGIN_NATS,
    longest: int = LONGEST,
    company: int = 0,
) -> tuple[list[Case], int]:
    """``count`` cases with their answers, and how many were left out because the choice of a token
    depended on rounding: a greedy margin below ``margin_nats``, or another answer in one of ROUNDS
    in company, of each other or of at least ``company`` requests, than among FEW. A margin above
    the default is for bfloat16, where a prompt that is computed again rounds otherwise: then all
    cases are greedy, without penalties, and end before their first close choice. Raises NoCases."""
    draw = random.Random(seed)
    if margin_nats > MIN_MARGIN_NATS:
        whole = [
            clear(drawn(draw, 2 * number, longest)) for number in range(DRAWN_FOR_CLEAR * count)
        ]
        cut = await asyncio.gather(*(_cut(http, case, margin_nats) for case in whole))
        longest = sorted(cut, key=lambda case: -int(case.body["max_tokens"]))[: 2 * count]
        candidates = [case for case in longest if case.body["max_tokens"] >= MIN_TOKENS]
    else:
        candidates = [drawn(draw, number, longest) for number in range(2 * count)]
    first = [
        answer
        for i in range(0, len(candidates), FEW)
        for answer in await asyncio.gather(*(_answer(http, c) for c in candidates[i : i + FEW]))
    ]
    stable = [answer is not None for answer in first]
    times = max(1, -(-company // max(1, len(candidates))))
    for _ in range(ROUNDS):
        order = draw.sample(times * [*range(len(candidates))], times * len(candidates))
        answers = await asyncio.gather(*(_answer(http, candidates[i]) for i in order))
        for i, answer in zip(order, answers, strict=True):
            stable[i] &= answer == first[i]
    found = [
        replace(case, token_ids=answer)
        for case, answer, same in zip(candidates, first, stable, strict=True)
        if same and answer is not None
    ]
    if len(found) < count:
        raise NoCases(f"{len(found)} of {len(candidates)} answers were stable; {count} are needed")
    return found[:count], stable.count(False)


def clear(case: Case) -> Case:
    """The case without penalties."""
    kept = {name: value for name, value in case.body.items() if not name.endswith("penalty")}
    return replace(case, body=kept)


async def _cut(http: httpx.AsyncClient, case: Case, margin_nats: float) -> Case:
    """The case with ``max_tokens`` such that its answer ends before the first greedy choice between
    two tokens that are closer than ``margin_nats``."""
    answer = await http.post("/v1/completions", json=case.body | {"logprobs": 2})
    answer.raise_for_status()
    (choice,) = answer.json()["choices"]
    margins = [_margin(top) for top in choice["logprobs"]["top_logprobs"]]
    clear_ones = tuple(takewhile(lambda margin: margin >= margin_nats, margins))
    body = case.body | {"max_tokens": len(clear_ones)}
    return replace(case, body=body, margins=clear_ones)


def _margin(top: dict[str, float]) -> float:
    """Nats between the best token and the next one."""
    best = sorted(top.values(), reverse=True)
    return best[0] - best[1] if len(best) > 1 else math.inf


async def _answer(http: httpx.AsyncClient, case: Case) -> tuple[int, ...] | None:
    """None where a greedy choice was too close to call."""
    greedy = case.body["temperature"] == 0.0
    body = case.body | ({"logprobs": 2} if greedy and "prompt" in case.body else {})
    answer = await http.post("/v1/completions", json=body)
    answer.raise_for_status()
    (choice,) = answer.json()["choices"]
    has_penalties = any(name.endswith("penalty") for name in case.body)
    if not greedy or has_penalties:
        return tuple(choice["token_ids"])
    if any(_margin(top) < MIN_MARGIN_NATS for top in choice["logprobs"]["top_logprobs"]):
        return None
    return tuple(choice["token_ids"])
