"""Prompts, messages and tokens that are wrong or too long."""

import json
from typing import Any

import httpx
import pytest

from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.little_work import little_work

PROMPTS: list[Any] = [
    "", [], [[]], [""], None, {"a": 1}, 5, True,
    [True], [1.0], [1, "a"], ["a", 1], [[1], "a"], [[1], ["a"]], [[1.5]], [[[1]]], [[True]],
    [-1], [10**6], [10**400], [[1], [-5]], [2**63], [None],
]  # fmt: skip


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: str(p)[:20])
async def test_a_wrong_prompt(checked_client: httpx.AsyncClient, prompt: object) -> None:
    check_error(await checked_client.post(COMPLETIONS, json={"prompt": prompt}), 400, "prompt")


async def test_a_missing_prompt(checked_client: httpx.AsyncClient) -> None:
    check_error(await checked_client.post(COMPLETIONS, json={}), 400, "prompt")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "fox " * 600}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "fox " * 2_000_000}]}, "messages"),
        (CHAT, {"messages": USER, "max_tokens": 600}, "max_tokens"),
        (COMPLETIONS, {"prompt": "fox " * 600}, "prompt"),
        (COMPLETIONS, {"prompt": [65] * 512}, "prompt"),
        (COMPLETIONS, {"prompt": [65] * 1_000_000}, "prompt"),
        (COMPLETIONS, {"prompt": [[65], [65] * 512]}, "prompt"),
        (COMPLETIONS, {"prompt": [65] * 500, "max_tokens": 13}, "max_tokens"),
    ],
)
async def test_what_does_not_fit_the_context(
    checked_client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    content = json.dumps(body).encode()
    with little_work():
        error = check_error(await checked_client.post(path, content=content), 400, param)
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]


async def test_the_whole_context_may_be_used(says: Says, client_of: ClientOf) -> None:
    response = await client_of(says()).post(
        COMPLETIONS, json={"prompt": [65] * 500, "max_tokens": 12}
    )
    assert response.status_code == 200


async def test_too_many_choices_in_all(checked_client: httpx.AsyncClient) -> None:
    body = {"prompt": ["a"] * 100, "n": 128}
    check_error(await checked_client.post(COMPLETIONS, json=body), 400, "prompt")


@pytest.mark.parametrize(
    "body",
    [
        {}, {"prompt": "a", "messages": USER}, {"prompt": 5}, {"messages": []},
        {"messages": [{"role": "wizard", "content": "a"}]},
    ],
)  # fmt: skip
async def test_bad_tokenize(checked_client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    check_error(await checked_client.post("/tokenize", json=body), 400)


@pytest.mark.parametrize(
    "tokens", [None, "a", 5, [-1], [10**6], [10**40], [True], [1.5], ["a"], [[1]]]
)
async def test_bad_detokenize(checked_client: httpx.AsyncClient, tokens: object) -> None:
    check_error(await checked_client.post("/detokenize", json={"tokens": tokens}), 400)
