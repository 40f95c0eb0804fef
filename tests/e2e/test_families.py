"""Every model family is served as Qwen3.5 is: handed off, behind kept prefixes, moved to other
workers and after a worker's death each stream has the greedy tokens of transformers."""

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.model.registry import FAMILIES, read_config
from tests.e2e.conftest import ending_well
from tests.e2e.records import Records, outcomes, settled
from tests.e2e.served import for_long, with_tokenizer
from tests.e2e.stack import Stack
from tests.e2e.streams import Stream, all_ended, some_reach
from tests.e2e.waiting import eventually
from tests.engine.families import SHAPES, family_checkpoint, reference

NAMES = {model_type: name for name, (model_type, _) in SHAPES.items() if name.endswith("-odd")}
"""A shape of each type: that with odd numbers of heads."""
ONE_OF_A_KIND = ("llama", "gemma3_text", "qwen3_next")
"""Types that differ in their caches: pages alone, windows, and states with experts. The others
differ in arithmetic, which tests/engine/test_families.py compares. ALL_FAMILIES=1 serves all."""
SERVED = {t: n for t, n in NAMES.items() if t in ONE_OF_A_KIND or os.environ.get("ALL_FAMILIES")}
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "heartbeat": 0.25,
    "page_size": 16,
    "num_pages": 512,
    "max_batch_tokens": 128,
    "poison": True,
    "verify_handoff": True,
}
NUM_WORKERS = 3
LONG = 6000
"""Tokens that a stream in whose beginning a test acts may have; it must fit into memory alone."""
MORE = 100
"""Tokens of a stream that are compared behind those that it had when it was disturbed."""
TIE = 1e-4
Answer = tuple[list[int], int]
"""Token ids, and how many tokens of the prompt were reused."""


def test_every_type_is_served() -> None:
    multimodal = {name for name, family in FAMILIES.items() if family.multimodal}
    assert set(NAMES) == set(FAMILIES) - multimodal
    assert set(ONE_OF_A_KIND) <= set(NAMES)


@pytest.fixture(scope="module", params=SERVED.values(), ids=SERVED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def baton(name: str) -> Iterator[Stack]:
    folder = for_long(with_tokenizer(family_checkpoint(name)))
    with ending_well(Stack(folder, "--prefill", "1", "--decode", "2", **SETTINGS)) as stack:
        yield stack


def draw(number: int, length: int) -> tuple[int, ...]:
    rng = random.Random(number)
    return tuple(rng.randrange(260) for _ in range(length))


@torch.inference_mode()
def assert_greedy(name: str, prompt: tuple[int, ...], tokens: list[int]) -> None:
    """Each token is the most probable one to transformers, or as probable but for rounding."""
    text = torch.tensor([[*prompt, *tokens]])
    logits = reference(name)(text, use_cache=False).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    wrong = (logits.max(1).values - chosen > TIE).nonzero().flatten().tolist()
    assert not wrong, f"{len(prompt)} tokens, then not greedy at {wrong[:5]}"


async def ask(baton: Stack, name: str, prompts: list[tuple[int, ...]]) -> list[Answer]:
    """The answers to these prompts, which come together."""
    streams = await all_ended([Stream(baton.url, p, max_tokens=24) for p in prompts])
    for each, prompt in zip(streams, prompts, strict=True):
        assert len(each.token_ids) == 24
        assert_greedy(name, prompt, each.token_ids)
    found = await records(baton, streams)
    return [(s.token_ids, int(found[s.http_id].get("num_reused", 0))) for s in streams]


async def records(baton: Stack, streams: list[Stream]) -> Records:
    with baton.redis() as server:
        return await settled(server, outcomes(streams))


async def test_handed_off(baton: Stack, name: str) -> None:
    await ask(baton, name, [draw(n, length) for n, length in enumerate((1, 15, 64, 65, 150, 270))])
    await baton.idle(NUM_WORKERS)


async def test_behind_a_prefix(baton: Stack, name: str) -> None:
    long = draw(10, 600)
    ((answer, reused),) = await ask(baton, name, [long])
    assert reused == 0
    onwards = (*long, *answer, *draw(11, 9))
    (_, again), (_, behind_answer) = await ask(baton, name, [long, onwards])
    assert again > 500
    assert behind_answer > 500
    lengths = (590, 333, 64, 17)
    parting = [await ask(baton, name, [(*long[:n], *draw(n, 20))]) for n in lengths]
    if not read_config(family_checkpoint(name)).cache_layout("float32", 16).has_states:
        assert again == 592
        assert [reused for ((_, reused),) in parting] == [576, 320, 64, 16], "any page boundary"
    await baton.idle(NUM_WORKERS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "moved"])
async def test_goes_on_at_another_worker(baton: Stack, name: str, number: signal.Signals) -> None:
    prompts = [draw(20 + n, 40 + 60 * n) for n in range(3)]
    leaving, killed = baton.pids()["decode-1"], number == signal.SIGKILL

    async def count() -> float:
        return await baton.retries() if killed else (await baton.moved())["moved"]

    before = await count()
    streams = [Stream(baton.url, prompt, max_tokens=LONG) for prompt in prompts]
    await some_reach(streams, len(streams), num_tokens=10)
    os.kill(leaving, number)

    async def disturbed() -> None:
        assert await count() > before

    await eventually(disturbed, "that a stream goes on elsewhere")
    lens = [len(each.token_ids) + MORE for each in streams]
    for each, length in zip(streams, lens, strict=True):
        await each.reaches(length)
    for each in streams:
        await each.disconnect()
    for each, prompt, length in zip(streams, prompts, lens, strict=True):
        assert_greedy(name, prompt, each.token_ids[:length])
    found = await records(baton, streams)
    if killed:
        assert any(int(found[each.http_id]["attempt"]) > 1 for each in streams)
    await baton.idle(NUM_WORKERS, 40.0)
