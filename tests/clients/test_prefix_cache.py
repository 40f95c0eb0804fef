"""The prefix cache as clients see it: OpenAI's and Anthropic's, on a conversation that goes on."""

import anthropic
import httpx
import openai
import pytest

from tests.clients.api import MODEL, TIMEOUT_S, Api

PAGE = 64
"""Tokens of a page, at whose ends the states of a prompt are kept."""
LORE = " ".join(f"Shelf {i} holds {3 * i % 97} shells and {7 * i % 89} cups." for i in range(60))


def turns(salt: str, *said: str) -> list[dict[str, str]]:
    """A conversation whose prompt begins with ``salt``, and so is no other test's."""
    return [
        {"role": "user" if i % 2 == 0 else "assistant", "content": text}
        for i, text in enumerate([f"{salt}: {LORE}", *said])
    ]


def ask(client: openai.OpenAI, salt: str, *said: str, **extra: str) -> openai.types.CompletionUsage:
    answer = client.chat.completions.create(
        model=MODEL, messages=turns(salt, *said), max_tokens=4, temperature=0, extra_body=extra
    )  # type: ignore[call-overload]
    usage: openai.types.CompletionUsage = answer.usage
    assert usage.prompt_tokens_details is not None
    return usage


def cached(usage: openai.types.CompletionUsage) -> int:
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    return usage.prompt_tokens_details.cached_tokens


def test_the_next_turn_computes_what_is_new(client: openai.OpenAI, api: Api) -> None:
    first = ask(client, "next turn")
    assert first.prompt_tokens > 8 * PAGE
    assert cached(first) == 0
    second = ask(client, "next turn", "Yes.", "And then?")
    assert cached(second) > first.prompt_tokens - 2 * PAGE
    (record, *_) = httpx.get(f"{api.base}/requests?limit=1").json()["data"]
    assert record["prompt_tokens"] == second.prompt_tokens
    assert record["cached_tokens"] == cached(second)
    assert record["reused"] in ("gpu", "peer")


def test_a_stream_tells_it_too(client: openai.OpenAI) -> None:
    whole = ask(client, "stream")
    *_, last = client.chat.completions.create(
        model=MODEL,
        messages=turns("stream"),
        max_tokens=4,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )  # type: ignore[call-overload]
    assert last.usage.prompt_tokens == whole.prompt_tokens
    assert cached(last.usage) >= PAGE * ((whole.prompt_tokens - 1) // PAGE)


def test_another_salt_shares_nothing(client: openai.OpenAI) -> None:
    assert cached(ask(client, "salted", cache_salt="a")) == 0
    assert cached(ask(client, "salted", cache_salt="b")) == 0
    assert cached(ask(client, "salted")) == 0
    assert cached(ask(client, "salted", cache_salt="a")) > 0
    with pytest.raises(openai.BadRequestError, match="cache_salt"):
        ask(client, "salted", cache_salt="")


def test_messages_leave_what_was_cached_out_of_the_input_tokens(api: Api) -> None:
    with anthropic.Anthropic(
        base_url=api.url, api_key="none", timeout=TIMEOUT_S, max_retries=0,
        _strict_response_validation=True,
    ) as claude:  # fmt: skip
        cold, warm = (
            claude.messages.create(model=MODEL, max_tokens=4, messages=turns("anthropic")).usage  # type: ignore[arg-type]
            for _ in range(2)
        )
        counted = claude.messages.count_tokens(model=MODEL, messages=turns("anthropic"))  # type: ignore[arg-type]
    assert (cold.cache_read_input_tokens, cold.input_tokens) == (0, counted.input_tokens)
    assert warm.cache_read_input_tokens
    assert warm.input_tokens + warm.cache_read_input_tokens == counted.input_tokens
    assert warm.cache_creation_input_tokens == 0


def test_the_input_of_a_response_counts_whole(client: openai.OpenAI) -> None:
    cold, warm = (
        client.responses.create(model=MODEL, input=turns("response"), max_output_tokens=4).usage  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert cold is not None
    assert warm is not None
    assert cold.input_tokens_details.cached_tokens == 0
    assert warm.input_tokens_details.cached_tokens > 0
    assert warm.input_tokens == cold.input_tokens
