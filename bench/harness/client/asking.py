"""The body of one completion request, ready to be sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Ask:
    """One request, encoded before the clock runs. The answer is checked against ``max_tokens``:
    with ``exact`` it must have exactly this many tokens."""

    path: str
    content: bytes
    stream: bool
    max_tokens: int | None = None
    exact: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def completion(model: str, prompt: str | Sequence[int], **fields: Any) -> Ask:
    """A request of /v1/completions; ``fields`` as for ``_ask``."""
    text = prompt if isinstance(prompt, str) else list(prompt)
    return _ask(COMPLETIONS, {"model": model, "prompt": text}, **fields)


def chat(model: str, messages: str | Sequence[Mapping[str, Any]], **fields: Any) -> Ask:
    """A request of /v1/chat/completions; a string is one user message."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return _ask(CHAT, {"model": model, "messages": list(messages)}, **fields)


def _ask(
    path: str,
    body: dict[str, Any],
    *,
    stream: bool = True,
    max_tokens: int | None = None,
    ignore_eos: bool = False,
    exact: bool | None = None,
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> Ask:
    """Encode a request. ``fields`` (temperature, seed, return_token_ids ...) go into the body as
    given. ``exact`` None: the length is exact if ``ignore_eos`` is sent."""
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if ignore_eos:
        body["ignore_eos"] = True
    exact = ignore_eos if exact is None else exact
    return Ask(path, _encode({**body, **fields}), stream, max_tokens, exact, headers or {})
