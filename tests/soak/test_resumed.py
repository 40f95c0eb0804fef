"""Which answers that differ are those of a prompt that was computed again."""

import asyncio
import json

import httpx
import pytest

from tests.soak.cases import Case
from tests.soak.resumed import explained

PROMPT = [1, 2]
BODY = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0.0}
CASE = Case("0-greedy", BODY, (7, 8, 9, 10))
AGAIN = {(1, 2): [7, 8, 9, 10], (1, 2, 7): [8, 3, 4], (1, 2, 7, 8): [3, 4]}
"""What a quiet stack answers: computed again behind token 7, the third token is another."""


def answer(request: httpx.Request) -> httpx.Response:
    body = json.loads(request.content)
    token_ids = AGAIN.get(tuple(body["prompt"]), [0])[: body["max_tokens"]]
    choice = {"token_ids": token_ids, "prompt_token_ids": body["prompt"]}
    return httpx.Response(200, json={"choices": [choice]})


def is_explained(*token_ids: int, case: Case = CASE) -> bool:
    async def asked() -> bool:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://quiet") as http:
            return await explained(http, {}, case, list(token_ids))

    return asyncio.run(asked())


def test_the_answer_of_a_prompt_computed_again_behind_some_tokens_is_explained() -> None:
    assert CASE.first_difference([7, 8, 3, 4]) == 2
    assert is_explained(7, 8, 3, 4)


@pytest.mark.parametrize(
    ("case", "token_ids"),
    [
        (CASE, (7, 8, 3, 5)),
        (CASE, (7, 5, 3, 4)),
        (CASE, (7, 8, 3)),
        (Case("1", BODY | {"temperature": 0.8}, CASE.token_ids), (7, 8, 3, 4)),
    ],
    ids=["other rest", "other beginning", "too short", "sampled"],
)
def test_every_other_difference_is_not(case: Case, token_ids: tuple[int, ...]) -> None:
    assert not is_explained(*token_ids, case=case)
