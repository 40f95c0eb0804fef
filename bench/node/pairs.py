"""Which pairs of a stack's workers have tested each other, and how fast they are.

Workers test a pair when they meet: a decode worker pulls from every prefill worker; a worker that
computes prompts pulls from every other worker, once that keeps prefixes. The coordinator tells
results in ``/metrics``, with 0 for a pair that failed. So the part sends enough prompts for each
worker to keep something, and waits until every pair is told.
"""

import asyncio
import random
import time
from collections.abc import Iterable
from typing import Any

import httpx

from bench.harness.client.asking import completion
from bench.harness.client.client import Client
from bench.harness.client.endpoint import endpoint
from bench.harness.server_info import ask_server
from bench.prometheus import series

METRICS = {
    "baton_handoff_selftest_bytes_per_second": ("prefill", "decode"),
    "baton_prefix_cache_selftest_bytes_per_second": ("keeper", "puller"),
}
"""With the labels of exporter and puller."""
PROMPT_LEN, OUTPUT_LEN, EACH = 256, 16, 4
LOOK_S = 0.5
TIMEOUT_S = 20.0
Pair = tuple[str, str]
"""(exporter, puller): instances."""


def expected(roles: dict[str, str]) -> set[Pair]:
    """By the role of each instance."""
    return {
        (exporter, puller)
        for exporter, exports_as in roles.items()
        for puller, pulls_as in roles.items()
        if exporter != puller and (pulls_as != "decode" or exports_as == "prefill")
    }


def told(metrics: str) -> dict[Pair, float]:
    """Bytes a second by pair, from the text of ``/metrics``."""
    return {
        (labels[exporter], labels[puller]): speed
        for name, (exporter, puller) in METRICS.items()
        for labels, speed in series(metrics, name)
    }


async def measure(url: str, vocab: int, num_workers: int, within_s: float) -> dict[str, Any]:
    """What every pair of the workers at ``url`` has found; after ``within_s``, of those that are
    told. Raises CannotMeasure and httpx.HTTPError."""
    begin = time.monotonic()
    await _prompts(url, vocab, EACH * num_workers)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http:
        while True:
            workers = (await http.get("/status")).raise_for_status().json()["workers"]
            metrics = (await http.get("/metrics")).raise_for_status().text
            roles = {worker["instance"]: worker["role"] for worker in workers}
            want, known = expected(roles), told(metrics)
            if want <= known.keys() or time.monotonic() - begin > within_s:
                break
            await asyncio.sleep(LOOK_S)
    return figures(roles, {pair: speed for pair, speed in known.items() if pair in want})


def figures(roles: dict[str, str], known: dict[Pair, float]) -> dict[str, Any]:
    """``missing`` are pairs that have told nothing, ``failed`` those that are not used."""
    want = expected(roles)
    passed = [speed for speed in known.values() if speed > 0]
    return {
        "expected": len(want),
        "passed": len(passed),
        "failed": _names(pair for pair, speed in known.items() if speed <= 0),
        "missing": _names(want - known.keys()),
        "slowest_gb_per_s": min(passed) / 1e9 if passed else None,
        "gb_per_s": {f"{a} -> {b}": speed / 1e9 for (a, b), speed in sorted(known.items())},
    }


def _names(pairs: Iterable[Pair]) -> list[str]:
    return sorted(f"{exporter} -> {puller}" for exporter, puller in pairs)


async def _prompts(url: str, vocab: int, number: int) -> None:
    """Different ones, all at once, so that every worker gets some."""
    draw = random.Random(0)
    fields = {"max_tokens": OUTPUT_LEN, "ignore_eos": True, "temperature": 1}
    async with Client(endpoint(url)) as client:
        model = (await ask_server(client, None)).model
        prompts = [[draw.randrange(vocab) for _ in range(PROMPT_LEN)] for _ in range(number)]
        asks = [completion(model, prompt, **fields) for prompt in prompts]
        await asyncio.gather(*(client.send(ask) for ask in asks))
