"""A streaming client of ``/v1/chat/completions``, for one conversation at a time."""

import json
from collections.abc import Iterator
from typing import Any

from deploy.api_client import ApiClient, ApiError


class ChatClient:
    """``model`` None: the first that the server lists. ``options`` go with every request, but for
    those that are None. Raises ApiError from every method."""

    def __init__(self, api: ApiClient, model: str | None = None, **options: float | None) -> None:
        self._api = api
        self._options = {name: value for name, value in options.items() if value is not None}
        self.model = model or self._first_model()

    def stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        """The answer's text, piece by piece. Dropping the iterator cancels the request."""
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
