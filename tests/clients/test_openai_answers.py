"""openai-python: thoughts, log-probabilities, errors, time limits and cancelled streams."""

from typing import Any

import openai
import pytest

from tests.clients.api import MODEL, TIMEOUT_S, Api
from tests.clients.tools import CALCULATOR, SHELLS, named

ASKED: list[Any] = [{"role": "user", "content": SHELLS}]


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"messages": ASKED, "temperature": 0, "max_tokens": 120, **fields}
    return client.chat.completions.create(model=MODEL, **given)


def thinking(budget: int = 20, **body: Any) -> dict[str, Any]:
    """Thinks until its budget ends the thought."""
    more = {"thinking_token_budget": budget, **body}
    return {"reasoning_effort": "high", "extra_body": more}


def test_a_thought_is_apart_from_the_answer(client: openai.OpenAI) -> None:
    message = ask(client, **thinking()).choices[0].message
    assert message.reasoning_content
    assert message.reasoning == message.reasoning_content
    assert message.content
    assert "think>" not in message.content + message.reasoning


def test_a_streamed_thought_says_the_same(client: openai.OpenAI) -> None:
    message = ask(client, **thinking()).choices[0].message
    deltas = [chunk.choices[0].delta for chunk in ask(client, stream=True, **thinking())]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    contents = [delta.content or "" for delta in deltas]
    assert "".join(thoughts) == message.reasoning_content
    assert "".join(contents) == message.content
    last_thought = max(i for i, text in enumerate(thoughts) if text)
    assert last_thought < min(i for i, text in enumerate(contents) if text)


def test_thinking_is_off_and_left_out_on_request(client: openai.OpenAI) -> None:
    for options in ({}, {"reasoning_effort": "none"}, thinking(include_reasoning=False)):
        message = ask(client, **options).choices[0].message
        assert not getattr(message, "reasoning_content", None)
        assert message.content


def test_a_call_and_a_form_come_after_the_thought(client: openai.OpenAI) -> None:
    choice = ask(client, tools=[CALCULATOR], tool_choice=named("calculator"), **thinking()).choices[
        0
    ]
    assert choice.message.reasoning_content
    assert [call.function.name for call in choice.message.tool_calls] == ["calculator"]
    message = ask(client, **thinking(guided_choice=["yes", "no"])).choices[0].message
    assert message.reasoning_content
    assert message.content in ("yes", "no")


def test_logprobs_of_a_stream_are_those_of_the_whole(client: openai.OpenAI) -> None:
    options = {"logprobs": True, "top_logprobs": 3}
    whole = ask(client, **options).choices[0]
    assert b"".join(bytes(each.bytes) for each in whole.logprobs.content).startswith(
        whole.message.content.encode()
    )
    streamed = [
        each
        for chunk in ask(client, stream=True, **options)
        if chunk.choices[0].logprobs
        for each in chunk.choices[0].logprobs.content
    ]
    assert [each.token for each in streamed] == [each.token for each in whole.logprobs.content]
    assert all(len(each.top_logprobs) == 3 for each in streamed)


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "max_tokens"),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
        ({"tools": [CALCULATOR], "tool_choice": named("other")}, openai.BadRequestError, None),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, None),
        ({"response_format": {"type": "strange"}}, openai.BadRequestError, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(
    client: openai.OpenAI,
    fields: dict[str, Any],
    error: type[openai.APIStatusError],
    param: str | None,
    stream: bool,
) -> None:
    with pytest.raises(error) as raised:
        ask(client, stream=stream, **fields)
    assert raised.value.type == "invalid_request_error"
    assert param is None or param in (raised.value.param or "")


def test_a_model_and_a_path_that_are_not_there(client: openai.OpenAI, api: Api) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="other", messages=ASKED)
    assert raised.value.param == "model"
    with (
        openai.OpenAI(base_url=api.url, api_key="none", max_retries=0) as without_v1,
        pytest.raises(openai.NotFoundError, match="/v1"),
    ):
        ask(without_v1)


async def test_a_time_limit_and_a_closed_stream_end_their_requests(api: Api) -> None:
    async with openai.AsyncOpenAI(
        base_url=api.base, api_key="none", max_retries=0, timeout=TIMEOUT_S
    ) as client:
        long: Any = {"messages": ASKED, "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.3).chat.completions.create(model=MODEL, **long)
        stream = await client.chat.completions.create(model=MODEL, stream=True, **long)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await api.idle()
