"""Tells an answer that a rounding changed, when its prompt was computed again, from a wrong one.

A worker's death costs a request its state: another worker computes the prompt and the tokens so far
again. In bfloat16 that rounds otherwise than the steps did, and with routed experts a rounding can
choose another expert, so no margin makes the next choice certain. What must hold is that the
rest of the answer is the one that a quiet stack gives to the prompt with those tokens behind it.
"""

from typing import Any

import httpx

from tests.soak.cases import Case


async def explained(
    http: httpx.AsyncClient, headers: dict[str, str], case: Case, token_ids: list[int]
) -> bool:
    """True if a whole answer, from some token on, at or before the first that differs, is the
    answer to its prompt with the tokens before."""
    if case.body["temperature"] or len(token_ids) != len(case.token_ids):
        return False
    body = case.body | {"return_token_ids": True}
    prompt = (await _choice(http, headers, body))["prompt_token_ids"]
    for num_before in range(case.first_difference(token_ids) + 1):
        said, rest = token_ids[:num_before], token_ids[num_before:]
        ask = body | {"prompt": prompt + said, "max_tokens": len(rest)}
        if (await _choice(http, headers, ask))["token_ids"] == rest:
            return True
    return False


async def _choice(
    http: httpx.AsyncClient, headers: dict[str, str], body: dict[str, Any]
) -> dict[str, Any]:
    answer = await http.post("/v1/completions", json=body, headers=headers)
    (choice,) = answer.raise_for_status().json()["choices"]
    found: dict[str, Any] = choice
    return found
