"""How long streams stand still when a worker that they run on, or beside which theirs computes its
steps, is killed (bench/spread_service.py)."""

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from bench.measures import percentile
from bench.stack import Stack

STREAM_S = 180.0
KILL_AFTER_TOKENS = 0.25
"""Share of their tokens that all streams have when the worker is killed."""


def longest_gaps(
    served: Stack, model: Path, num_streams: int, input_len: int, output_len: int
) -> dict[str, Any]:
    """Run ``num_streams`` at once, kill a worker that decodes, and return the longest gap between
    two tokens in seconds: the median and the most of the streams whose worker was killed, and of
    the others. ``lost``: streams that did not get all their tokens."""
    return asyncio.run(_run(served, model, num_streams, input_len, output_len))


async def _run(
    served: Stack, model: Path, num_streams: int, input_len: int, output_len: int
) -> dict[str, Any]:
    draw, vocab = random.Random(num_streams), Tokenizer.from_file(str(model / "tokenizer.json"))
    num_ids = min(100_000, vocab.get_vocab_size())
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=served.url, timeout=STREAM_S, limits=limits, trust_env=False
    ) as client:
        name = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        streams = [
            _Stream(name, [draw.randrange(1_000, num_ids) for _ in range(input_len)], output_len)
            for _ in range(num_streams)
        ]
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        enough = output_len * KILL_AFTER_TOKENS
        deadline = time.monotonic() + STREAM_S
        while min(len(stream.times) for stream in streams) < enough:
            if time.monotonic() > deadline or any(task.done() for task in running):
                raise httpx.ReadTimeout("the streams did not all get a quarter of their tokens")
            await asyncio.wait(running, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
        victim = next(each for each in sorted(served.pids()) if not each.startswith("coord"))
        killed_at = time.monotonic()
        served.kill(victim)
        await asyncio.gather(*running)
        retried = [await stream.was_retried(client) for stream in streams]
    gaps = {"killed": [], "others": []}  # type: dict[str, list[float]]
    for stream, again in zip(streams, retried, strict=True):
        gaps["killed" if again else "others"].append(stream.longest_gap(killed_at))
    lost = sum(len(stream.times) < output_len for stream in streams)
    return {
        "streams": num_streams, "victim": victim, "lost": lost,
        **{
            f"{kind}_{what}_s": round(percentile(found, share), 3) if found else None
            for kind, found in gaps.items()
            for what, share in (("p50", 0.5), ("max", 1.0))
        },
        "num_killed": len(gaps["killed"]),
    }  # fmt: skip


class _Stream:
    """One completion; ``times`` are when its tokens came."""

    def __init__(self, model: str, prompt: list[int], output_len: int) -> None:
        self._body = {
            "model": model, "prompt": prompt, "max_tokens": output_len, "ignore_eos": True,
            "temperature": 1, "top_p": 1.0, "top_k": 0, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        self.times: list[float] = []
        self._id = ""

    async def run(self, client: httpx.AsyncClient) -> None:
        async with client.stream("POST", "/v1/completions", json=self._body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {") and '"choices"' in line:
                    self.times.append(time.monotonic())
                    self._id = self._id or json.loads(line.removeprefix("data: "))["id"]

    async def was_retried(self, client: httpx.AsyncClient) -> bool:
        """Whether its worker was lost."""
        found = (await client.get(f"/v1/requests/{self._id}")).raise_for_status().json()
        return int(found["attempts"]) > 1

    def longest_gap(self, since: float) -> float:
        pairs = zip(self.times, self.times[1:], strict=False)
        return max((b - a for a, b in pairs if b > since), default=0.0)
