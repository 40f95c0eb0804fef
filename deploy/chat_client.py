"""A streaming client of ``/v1/chat/completions``, for one conversation at a time."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

import httpx

from deploy.no_answer import no_answer

_CONNECT_S = 5.0
_SILENCE_S = 120.0  # between two pieces of an answer


class ChatError(Exception):
    """The server cannot be reached, or says no; the message is for people."""


class ChatClient:
    """``model`` None: the first that the server lists; ``headers`` go with every request.
    Raises ChatError from every method."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._options = {"temperature": temperature, "max_tokens": max_tokens}
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        self._http = httpx.Client(timeout=timeout, headers=headers)
        self.model = model or self._first_model()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        """The answer's text, piece by piece. Dropping the iterator cancels the request."""
        said = {name: value for name, value in self._options.items() if value is not None}
        body = {"model": self.model, "messages": messages, "stream": True, **said}
        try:
            with self._http.stream("POST", f"{self.url}/v1/chat/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    raise ChatError(_refusal(answer))
                yield from _pieces(answer.iter_lines())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ChatError(f"lost {self.url}: {error}") from error

    def _first_model(self) -> str:
        try:
            answer = self._http.get(f"{self.url}/v1/models")
            if answer.status_code != httpx.codes.OK:
                raise ChatError(_refusal(answer))
            return str(answer.json()["data"][0]["id"])
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ChatError(no_answer(self.url, error)) from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ChatError(f"what answers at {self.url} lists no model") from error


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    """The text in server-sent events, up to ``[DONE]``."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            event: dict[str, Any] = json.loads(data)
            if "error" in event:
                raise ChatError(str(event["error"]["message"]))
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    yield text
        except (ValueError, KeyError, TypeError) as error:
            raise ChatError(f"the server sent something else than an answer: {data}") from error
    raise ChatError("the answer broke off")


def _refusal(answer: httpx.Response) -> str:
    """The message of an error body; its beginning if it is not one."""
    try:
        return f"{answer.json()['error']['message']} (HTTP {answer.status_code})"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}: {answer.text[:200]}"
