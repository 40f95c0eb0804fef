"""``baton chat``: talk to a model in the terminal."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import typer

from deploy.api_client import ApiClient, ApiError, Url
from deploy.ports import DEFAULT_URL

FAILED = 1
INTERRUPTED = 130
_TIMEOUT = httpx.Timeout(120.0, connect=5.0)  # 120 s between two pieces of an answer


class ChatClient:
    """Asks for answers of ``model``, None: the first that the server lists. ``options`` go with
    every request, without those that are None. Every method raises ApiError."""

    def __init__(self, api: ApiClient, model: str | None = None, **options: float | None) -> None:
        self._api = api
        self._options = {name: value for name, value in options.items() if value is not None}
        self.model = model or self._first_model()

    def stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        """Yield the answer's text in pieces. Dropping the iterator cancels the request."""
        body = {"model": self.model, "messages": messages, "stream": True, **self._options}
        for line in self._api.post_lines("/v1/chat/completions", body):
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            with self._api.parsing():
                pieces = _text(json.loads(data))
            yield from pieces
        raise ApiError("the answer ended before it was complete")

    def _first_model(self) -> str:
        answer = self._api.get("/v1/models")
        with self._api.parsing():
            return str(answer.json()["data"][0]["id"])


def _text(event: dict[str, Any]) -> list[str]:
    """The pieces of text in one server-sent event."""
    if "error" in event:
        raise ApiError(str(event["error"]["message"]))
    found = [choice["delta"].get("content") for choice in event["choices"]]
    return [text for text in found if text]


def chat(
    message: Annotated[
        str | None, typer.Argument(help="Ask this alone; without it, talk, or read stdin.")
    ] = None,
    url: Url = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="The model's name; the first served.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="The server's own if not given.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="At most so many tokens an answer.")
    ] = None,
) -> None:
    """Chat with the model. Ctrl-C stops an answer, Ctrl-D ends.

    With a message, or with stdin from elsewhere than a terminal, prints one answer. Exit code:
    0, or 1 when the server cannot be reached or refuses.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives input() its line editing)
    try:
        with ApiClient(url, os.environ, _TIMEOUT) as api:
            client = ChatClient(api, model, temperature=temperature, max_tokens=max_tokens)
            messages = [{"role": "system", "content": system}] if system else []
            if message is None and sys.stdin.isatty():
                print(f"{client.model} at {api.url} (Ctrl-C stops an answer, Ctrl-D ends)")
                _talk(client, messages)
            else:
                question = sys.stdin.read().strip() if message is None else message
                if not _answer(client, [*messages, {"role": "user", "content": question}])[1]:
                    raise typer.Exit(INTERRUPTED)
    except ApiError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from error


def _talk(client: ChatClient, messages: list[dict[str, str]]) -> None:
    while True:
        try:
            question = input("> ").strip()
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print()
            return
        if not question:
            continue
        messages.append({"role": "user", "content": question})
        try:
            answer, _ = _answer(client, messages)
        except ApiError as error:
            messages.pop()
            print(f"error: {error}", file=sys.stderr)
            continue
        if answer:
            messages.append({"role": "assistant", "content": answer})
        else:  # stopped before its first token: the question counts as not asked
            messages.pop()


def _answer(client: ChatClient, messages: list[dict[str, str]]) -> tuple[str, bool]:
    """Print an answer as it comes. Returns it, and True if it is complete."""
    parts: list[str] = []
    complete = True
    try:
        for part in client.stream(messages):
            parts.append(part)
            print(part, end="", flush=True)
    except KeyboardInterrupt:
        complete = False
    finally:
        print(flush=True)
    return "".join(parts), complete
