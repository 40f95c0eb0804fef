"""Checks: OpenAI's own Python client, where it is installed."""

from typing import Any

from bench.conformance.check import Need, NotOffered, Source, Suite, Violation, require
from bench.conformance.questions import SUM
from bench.conformance.server import Server

SDK = Suite()

TIMEOUT_S = 60.0


def _client(server: Server) -> Any:
    try:
        from openai import AsyncOpenAI
    except ImportError:
        raise NotOffered("the package openai is not installed here") from None
    url = f"{server.client.endpoint.url}/v1"
    key = server.api_key or "none"
    return AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=TIMEOUT_S)


def _messages() -> list[dict[str, str]]:
    return [{"role": "user", "content": SUM}]


@SDK.check("openai: models, chat, completion", Need.RECOMMENDED, Source.OPENAI)
async def plain(server: Server) -> str:
    async with _client(server) as client:
        listed = [model.id async for model in client.models.list()]
        require(server.model in listed, f"it lists {listed}")
        chat = await client.chat.completions.create(
            model=server.model, messages=_messages(), max_tokens=16, temperature=0
        )
        require(bool(chat.choices[0].message.content), f"the answer is {chat}")
        completion = await client.completions.create(
            model=server.model, prompt="The sky is", max_tokens=4
        )
        require(completion.usage is not None, f"no usage in {completion}")
    return ""


@SDK.check("openai: a stream with usage", Need.RECOMMENDED, Source.OPENAI)
async def stream(server: Server) -> str:
    async with _client(server) as client:
        events = await client.chat.completions.create(
            model=server.model, messages=_messages(), max_tokens=16, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        text, last = "", None
        async for event in events:
            text += "".join(choice.delta.content or "" for choice in event.choices)
            last = event
        require(bool(text), "the stream has no text")
        require(last is not None and last.usage is not None, f"the last chunk is {last}")
    return ""


@SDK.check("openai: errors become its exceptions", Need.RECOMMENDED, Source.OPENAI)
async def errors(server: Server) -> str:
    client = _client(server)
    from openai import BadRequestError, NotFoundError

    async with client:
        for model, temperature, expected in (
            ("no-such-model", 0.0, NotFoundError),
            (server.model, -1.0, BadRequestError),
        ):
            try:
                await client.chat.completions.create(
                    model=model, messages=_messages(), temperature=temperature, max_tokens=1
                )
            except expected as error:
                require(bool(error.message), f"{expected.__name__} without a message")
            else:
                raise Violation(f"no {expected.__name__}")
    return ""
