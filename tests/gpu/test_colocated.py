"""One colocated worker on the GPU: the texts of the handoff, whatever dies."""

import asyncio

import pytest
import torch

from tests.e2e.problems import ask_all
from tests.e2e.served import TINY
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SETTINGS = {"dtype": "float32", "num_pages": 2048, "dead_after": 3.0, "log_level": "debug"}


async def test_both_says_what_the_handoff_says_also_when_it_is_killed() -> None:
    split = Stack(
        TINY, "--device", DEVICE, "--prefill", "1", "--decode", "1", gpu_share=2,
        verify_handoff=True, **SETTINGS,
    )  # fmt: skip
    try:
        split.start()
        expected = [choice["token_ids"] for choice in await ask_all(split.url, concurrency=8)]
        assert await asyncio.to_thread(split.stop) == 0
    finally:
        split.close()
    # A Stack runs from here on, and the workers of one GPU must agree on its share.
    colocated = Stack(TINY, "--device", DEVICE, "--role", "colocated", "--workers", "1", **SETTINGS)
    try:
        colocated.start()
        choices = await ask_all(colocated.url, concurrency=8)
        assert [choice["token_ids"] for choice in choices] == expected
        since = len(colocated.lines)
        asked = asyncio.create_task(ask_all(colocated.url, concurrency=8))
        await asyncio.to_thread(colocated.until, r"accepted", 20.0, since)
        colocated.kill("colocated-1")
        assert [choice["token_ids"] for choice in await asked] == expected
        await colocated.idle(num_workers=1)
        assert await asyncio.to_thread(colocated.stop) == 0
    finally:
        colocated.close()
