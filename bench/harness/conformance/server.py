"""The server under test: requests with deadlines, whole answers, and the parts of answers that
checks read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from bench.harness.client.client import Client
from bench.harness.client.exchange import Exchange
from bench.harness.conformance.stream_events import Event, Stream

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_SHOWN = 200
_MISSING = (404, 405, 501)
T = TypeVar("T")


class Unanswered(Exception):
    """The server gave no whole response within the deadlines; the message says what came."""


class Violation(Exception):
    """The server does not do what the check asks; the message shows its answer."""


class NotOffered(Exception):
    """The server answers that it does not offer this; the message shows the answer."""


def require(condition: object, message: str) -> None:
    """Raise Violation unless ``condition``."""
    if not condition:
        raise Violation(message)


class Called(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    """A tool call, or a delta of one."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: Called = msgspec.field(default_factory=Called)


class Said(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    tool_calls: list[Call] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    index: int = -1
    text: str | None = None
    message: Said | None = None
    delta: Said | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    def __post_init__(self) -> None:
        if self.total_tokens != self.prompt_tokens + self.completion_tokens:
            raise ValueError(f"usage does not add up: {self}")


class Completion(msgspec.Struct):
    """A completion of either endpoint, or one chunk of it."""

    choices: list[Choice]
    usage: Usage | None = None
    id: str | None = None
    object: str | None = None

    @property
    def choice(self) -> Choice:
        """The only choice. Raises Violation if there are others."""
        require(len(self.choices) == 1, f"{len(self.choices)} choices, not 1")
        return self.choices[0]

    @property
    def text(self) -> str:
        """Text of the only choice, of a completion or a chat. A chat's role must be assistant."""
        choice, said = self.choice, self.choice.message
        if said is None:
            require(choice.text is not None, f"no text in {choice}")
            return choice.text or ""
        require(said.role == "assistant", f"role is {said.role!r}")
        require(said.content is not None, "content is null")
        return said.content or ""

    @property
    def num_prompt(self) -> int:
        """Prompt tokens, by ``usage``."""
        return self._usage.prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Generated tokens, by ``usage``."""
        return self._usage.completion_tokens

    @property
    def _usage(self) -> Usage:
        if self.usage is None:
            raise Violation("no usage")
        return self.usage


@dataclass(frozen=True)
class Answer:
    """One whole response; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        text = self.body[:_SHOWN].decode(errors="replace")
        return f"HTTP {self.status}: {text}{'…' if len(self.body) > _SHOWN else ''}"

    def ok(self, *, optional: bool = False) -> "Answer":
        """This answer, if it is a 200. Raises NotOffered for a path or method that the server does
        not have; with ``optional`` also for a 400, by which it refuses a feature."""
        if self.status in _MISSING or (optional and self.status == 400):
            raise NotOffered(str(self))
        require(self.status == 200, str(self))
        return self

    def read(self, kind: type[T]) -> T:
        """Decode the JSON body. Raises Violation."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Violation(f"{error}: {self}") from None

    def completion(self, *, optional: bool = False) -> Completion:
        return self.ok(optional=optional).read(Completion)

    def stream(self) -> Stream:
        return Stream.read(self.body)

    def typed_events(self) -> Sequence[Event]:
        """The events of a stream of /v1/responses or /v1/messages, whose ``type`` is their name.
        Raises Violation for a malformed one."""
        kind = self.ok(optional=True).headers.get("content-type", "")
        require(kind.startswith("text/event-stream"), f"content-type is {kind!r}")
        stream = self.stream()
        require(stream.events, f"a stream without events: {self}")
        require(not stream.problems, "; ".join(stream.problems[:3]))
        for event in stream.events:
            same = event.name == event.data.get("type")
            require(same, f"event {event.name!r} and type differ: {event.data!r:.120}")
        return stream.events

    def chunks(self) -> list[Completion]:
        """The chunks of a stream with status 200, whatever its form. Raises Violation if one of
        them is an error."""
        found = [event.data for event in self.ok().stream().events]
        require(found, f"a stream without events: {self}")
        for chunk in found:
            require("error" not in chunk, f"an error in the stream: {chunk!r}")
        return msgspec.convert(found, list[Completion])


def require_order(found: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise Violation unless ``found`` has the names ``wanted`` in this order."""
    places = [found.index(name) if name in found else -1 for name in wanted]
    require(-1 not in places and places == sorted(places), f"the events are {found}")


def streamed_text(chunks: Sequence[Completion]) -> str:
    """The whole text of the chunks of one choice."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return "".join((c.delta.content if c.delta else c.text) or "" for c in choices)


@dataclass(frozen=True)
class Server:
    """A server; every request raises Unanswered if it is down, silent or speaks no HTTP."""

    client: Client
    model: str
    api_key: str | None = None

    async def send(
        self, path: str, content: bytes, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """POST ``content`` as it is, with JSON as its content type."""
        return whole(await self.client.request("POST", path, content, headers=headers))

    async def get(self, path: str) -> Answer:
        return whole(await self.client.get(path))

    async def options(self, path: str, headers: Mapping[str, str]) -> Answer:
        return whole(await self.client.request("OPTIONS", path, headers=headers))

    async def post(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """POST ``body``, with ``model`` unless the body has one."""
        return await self.send(path, json.dumps({"model": self.model, **body}).encode(), headers)

    async def chat(self, question: str, **fields: Any) -> Answer:
        """Send one user message, at temperature 0 unless ``fields`` say otherwise."""
        messages = [{"role": "user", "content": question}]
        return await self.post(CHAT, {"messages": messages, "temperature": 0, **fields})

    async def complete(self, prompt: Any, **fields: Any) -> Answer:
        return await self.post(COMPLETIONS, {"prompt": prompt, "temperature": 0, **fields})


def whole(exchange: Exchange) -> Answer:
    if exchange.failure is not None:
        raise Unanswered(f"{exchange.failure.value}: {exchange.detail}")
    assert exchange.status is not None, "an exchange without failure has a status"
    return Answer(exchange.status, exchange.headers, exchange.body)
