"""openai-python against the whole system."""

from collections.abc import AsyncIterator

import openai
import pytest

from tests.e2e.stack import Stack

MODEL = "per_expert"
MESSAGES = [{"role": "user", "content": "What is left?"}]


@pytest.fixture
async def client(baton: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{baton.url}/v1", api_key="none", max_retries=0, timeout=30.0
    ) as client:
        yield client


async def chat(client: openai.AsyncOpenAI, **params):
    options = {"temperature": 0, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    return await client.chat.completions.create(model=MODEL, messages=MESSAGES, **options | params)


async def test_streamed_and_plain_are_the_same(client: openai.AsyncOpenAI) -> None:
    plain = await chat(client)
    stream = await chat(client, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == plain.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == plain.choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == plain.usage.total_tokens
    assert plain.usage.completion_tokens == 40
    assert plain.usage.total_tokens == plain.usage.prompt_tokens + 40
    assert plain.model == MODEL


async def test_a_seed_repeats_and_n_differs(client: openai.AsyncOpenAI) -> None:
    two = await chat(client, temperature=1.0, seed=5, n=2)
    again = await chat(client, temperature=1.0, seed=5, n=2)
    texts = [choice.message.content for choice in two.choices]
    assert [choice.message.content for choice in again.choices] == texts
    assert texts[0] != texts[1]
    assert two.usage.completion_tokens == 80
    stream = await chat(client, temperature=1.0, seed=5, n=2, stream=True)
    streamed = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


async def test_stop_strings(client: openai.AsyncOpenAI, baton: Stack) -> None:
    whole = (await chat(client)).choices[0].message.content
    stop = whole[10:13]
    answer = await chat(client, stop=["never there", stop])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    stream = await chat(client, stop=stop, stream=True)
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(parts) == whole[: whole.index(stop)]
    await baton.idle(num_workers=2)


async def test_logprobs(client: openai.AsyncOpenAI) -> None:
    answer = await chat(client, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == 40
    for token in content:
        best = [top.logprob for top in token.top_logprobs]
        assert len(best) == 3
        assert best == sorted(best, reverse=True)
        assert token.logprob == best[0], "greedy takes the best"
    raw = b"".join(bytes(token.bytes) for token in content if not token.token.startswith("<|"))
    assert raw.decode(errors="replace") == answer.choices[0].message.content


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt=["One", "Two"], max_tokens=8, temperature=0, logprobs=2, n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    assert all(len(choice.logprobs.tokens) <= 8 for choice in answer.choices)
    assert answer.usage.prompt_tokens == 6


async def test_errors_have_their_types(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="other") as not_found:
        await client.chat.completions.create(model="other", messages=MESSAGES)
    assert not_found.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="1024"):
        await chat(client, max_tokens=4000)
    assert [model.id for model in (await client.models.list()).data] == [MODEL]
