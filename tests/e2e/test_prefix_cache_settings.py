"""Whose prompts share prefixes, by the settings of a real system."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import Start
from tests.e2e.refusals import refusal
from tests.e2e.served import TINY
from tests.e2e.stack import Stack
from tests.e2e.waiting import eventually

KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("alice", "bob")}
PROMPT = [100 + i % 150 for i in range(700)]


def cached(stack: Stack, key: str = "", **fields: object) -> int:
    """How many tokens of the prompt were cached, as the answer and the record tell."""
    headers = {"authorization": f"Bearer {KEYS[key]}"} if key else {}
    with httpx.Client(base_url=stack.url, headers=headers, timeout=30.0) as http:
        body = {"prompt": PROMPT, "max_tokens": 2, "ignore_eos": True, **fields}
        answer = http.post("/v1/completions", json=body).raise_for_status().json()
        record = http.get(f"/v1/requests/{answer['id']}").raise_for_status().json()
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert record["cached_tokens"] == found
    assert (record["reused"] == "") == (found == 0)
    return found


async def test_metrics_and_status_say_what_was_found(tiny: Stack) -> None:
    async def told() -> dict[str, float]:
        async with httpx.AsyncClient(base_url=tiny.url, timeout=5.0) as http:
            text = (await http.get("/metrics")).text
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples]
        names = {
            "queries": "vllm:prefix_cache_queries_total",
            "hits": "vllm:prefix_cache_hits_total",
        }
        return {
            word: sum(sample.value for sample in samples if sample.name == name)
            for word, name in names.items()
        }

    before = await told()
    assert cached(tiny, cache_salt="metrics") == 0
    found = cached(tiny, cache_salt="metrics")
    assert found > 0

    async def check() -> None:
        after = await told()
        assert after["queries"] - before["queries"] == 2 * len(PROMPT)
        assert after["hits"] - before["hits"] == found
        workers = (await tiny.status())["workers"]
        assert sum(worker["reused_tokens"] for worker in workers) >= found
        assert sum(worker["kept_prefixes"] for worker in workers) > 0

    await eventually(check, "heartbeats have told it")


def test_isolated_keys_find_only_their_own_prompts(start: Start) -> None:
    keys = ",".join(f"{name}:{key}" for name, key in KEYS.items())
    stack = start(TINY, "--role", "colocated", api_keys=keys, prefix_cache_isolation="key")
    assert [cached(stack, key) for key in KEYS] == [0, 0]
    assert all(cached(stack, key) > 0 for key in KEYS)
    assert cached(stack, "alice", cache_salt="of her own") == 0
    assert stack.stop() == 0
    assert "of her own" not in stack.text


def test_without_the_cache_every_prompt_is_computed(cold: Stack) -> None:
    assert [cached(cold) for _ in range(2)] == [0, 0]
    (worker,) = httpx.get(f"{cold.url}/status", timeout=5.0).json()["workers"]
    assert (worker["kept_prefixes"], worker["queried_tokens"]) == (0, 0)


def test_isolation_without_keys_is_refused() -> None:
    needed = {"model": TINY, "redis_url": "redis://127.0.0.1:1"}
    message = refusal("coordinator", prefix_cache_isolation="key", **needed)
    assert message.startswith("error: prefix_cache_isolation: 'key' needs API keys")
    message = refusal("coordinator", prefix_cache_isolation="tenant", **needed)
    assert "'tenant'" in message
    assert "prefix-cache-isolation" in message
