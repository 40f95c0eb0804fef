"""What reaches the core of the fields that say how to sample and when to stop."""

from typing import Any

from tests.coordinator.answers import CHAT, COMPLETIONS, post
from tests.coordinator.fake_core import ClientOf, Says


async def test_sampling_fields_reach_the_core(says: Says, client_of: ClientOf) -> None:
    core = says()
    client = client_of(core)
    await post(
        client, COMPLETIONS, prompt="x", temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=7,
        presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1, logit_bias={"5": 2},
        min_tokens=2, max_tokens=9,
    )  # fmt: skip
    sampling = core.streams[0].spec.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 0)
    assert (sampling.min_p, sampling.seed, sampling.logit_bias) == (0.1, 7, {5: 2.0})
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert sampling.repetition_penalty == 1.1
    stop = core.streams[0].spec.stop
    assert (stop.min_tokens, stop.max_tokens) == (2, 9)
    await post(client, COMPLETIONS, prompt="x")
    defaults = core.streams[1].spec.sampling
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (1.0, 0.95, 20)


async def test_top_p_of_zero_is_greedy(says: Says, client_of: ClientOf) -> None:
    core = says()
    await post(client_of(core), COMPLETIONS, prompt="x", temperature=0.5, top_p=0)
    sampling = core.streams[0].spec.sampling
    assert (sampling.temperature, sampling.top_p) == (0.0, 1.0)


async def test_seeds(says: Says, client_of: ClientOf) -> None:
    core = says()
    client = client_of(core)

    async def seeds_of(**body: Any) -> list[int]:
        before = len(core.streams)
        await post(client, COMPLETIONS, **body)
        return [stream.spec.sampling.seed for stream in core.streams[before:]]

    first = await seeds_of(prompt="x", n=3, seed=-5)
    assert first == await seeds_of(prompt="x", n=3, seed=-5)
    assert len(set(first)) == 3
    assert first[:1] == await seeds_of(prompt="x", seed=-5)
    assert first * 2 == await seeds_of(prompt=["x", "y"], n=3, seed=-5)
    assert all(0 <= seed < 2**63 for seed in first)
    assert len(set(await seeds_of(prompt=["x", "y"], n=3))) == 6


async def test_without_max_tokens_the_context_is_the_limit(says: Says, client_of: ClientOf) -> None:
    for max_seq_len, limit in ((512, 512), (None, 1024), (10**6, 1024)):
        core = says(max_seq_len=max_seq_len)
        await post(client_of(core), CHAT, messages=[{"role": "user", "content": "Hi"}])
        spec = core.streams[0].spec
        assert spec.stop.max_tokens == limit - len(spec.prompt_ids)


async def test_min_tokens_holds_stop_strings_off(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("abababab"))
    answer = await post(client, COMPLETIONS, prompt="x", stop="b", min_tokens=3)
    assert answer["usage"]["completion_tokens"] > 3
