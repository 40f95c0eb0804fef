"""Checks: OpenAI's own Python client, if it is installed."""

from typing import Any

from bench.harness.conformance.check import SUM, recommended
from bench.harness.conformance.server import NotOffered, Server, Violation, require

TIMEOUT_S = 60.0


def _client(server: Server) -> Any:
    try:
        from openai import AsyncOpenAI
    except ImportError:
        raise NotOffered("the package openai is not installed here") from None
    url, key = f"{server.client.endpoint.url}/v1", server.api_key or "none"
    return AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=TIMEOUT_S)


async def _chat(client: Any, model: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": SUM}]
    given = {"max_tokens": 16, "temperature": 0, **fields}
    return await client.chat.completions.create(model=model, messages=messages, **given)


async def plain(server: Server) -> None:
    async with _client(server) as client:
        listed = [model.id async for model in client.models.list()]
        require(server.model in listed, f"it lists {listed}")
        chat = await _chat(client, server.model)
        require(chat.choices[0].message.content, f"the answer is {chat}")
        completion = await client.completions.create(
            model=server.model, prompt="The sky is", max_tokens=4
        )
        require(completion.usage is not None, f"no usage in {completion}")


async def stream(server: Server) -> None:
    async with _client(server) as client:
        options = {"include_usage": True}
        events = [
            event
            async for event in await _chat(
                client, server.model, stream=True, stream_options=options
            )
        ]
        text = "".join(choice.delta.content or "" for event in events for choice in event.choices)
        require(text, "the stream has no text")
        require(events[-1].usage is not None, f"the last chunk is {events[-1]}")


async def errors(server: Server) -> None:
    async with _client(server) as client:
        from openai import BadRequestError, NotFoundError

        for model, temperature, expected in (
            ("no-such-model", 0.0, NotFoundError),
            (server.model, -1.0, BadRequestError),
        ):
            try:
                await _chat(client, model, temperature=temperature)
            except expected as error:
                require(error.message, f"{expected.__name__} without a message")
            else:
                raise Violation(f"no {expected.__name__}")


CHECKS = (
    recommended("openai: models, chat, completion", plain),
    recommended("openai: a stream with usage", stream),
    recommended("openai: errors become its exceptions", errors),
)
