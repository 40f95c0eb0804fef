"""Held-out word problems, and how an answer ends."""

import asyncio
import json
import re

import httpx

from bench.stack import ROOT

HELDOUT = [json.loads(line) for line in (ROOT / "models/heldout.jsonl").read_text().splitlines()]


def final_number(text: str) -> str:
    found = re.search(r"#### (-?[\d.]+)", text)
    return found.group(1) if found else ""


async def ask_all(url: str, concurrency: int, num_problems: int | None = None) -> list[dict]:
    """The bundled model's answers, as choices of ``/v1/chat/completions``, to all of
    HELDOUT, or to as many."""
    limit = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:

        async def ask(problem: dict) -> dict:
            body = {
                "model": "tiny",
                "messages": [{"role": "user", "content": problem["question"]}],
                "temperature": 0,
                "max_tokens": 200,
                "return_token_ids": True,
            }
            async with limit:
                answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]

        return await asyncio.gather(*map(ask, HELDOUT[:num_problems]))
