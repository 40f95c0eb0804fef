"""Which requests belong to one conversation, by their bodies.

Requests with the same ``conversation_key`` are sent to the same node, where the prefix cache has
their earlier turns. The key is made of what all turns of a conversation share:

1. the session that the request names: the header ``x-session-id``, or ``prompt_cache_key``;
2. else its tools, its system prompt, and the first 2 KiB of what comes behind them.

So conversations that only share a system prompt have keys of their own and spread over the nodes,
and each node computes that prompt once. Prompts that begin with one long document share a key.
Clients send the earlier turns again as they sent them before, so the bytes of the JSON are compared
as they are.
"""

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

SESSION_HEADER = "x-session-id"
_BEGINNING_BYTES = 2048
_SYSTEM_ROLES = frozenset({"system", "developer"})
_NONE = Raw()


class _Body(Struct):
    """The fields of all APIs that the beginning of a prompt is made of."""

    prompt_cache_key: str | None = None
    previous_response_id: str | None = None
    tools: Raw = _NONE
    system: Raw = _NONE  # of the Messages API
    instructions: Raw = _NONE  # of the Responses API
    messages: Raw = _NONE
    input: Raw = _NONE
    prompt: Raw = _NONE


class _Message(Struct):
    role: str = ""


def conversation_key(headers: Mapping[str, str], body: bytes) -> bytes:
    """16 bytes; b"" for a request without a prompt, or with a body that cannot be read."""
    if session := headers.get(SESSION_HEADER):
        return _digest(b"session", session.encode())
    try:
        read = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    if session := read.prompt_cache_key:
        return _digest(b"session", session.encode())
    begins = _beginning(bytes(read.messages or read.input or read.prompt))
    if not begins:
        return b""
    return _digest(bytes(read.tools), bytes(read.system), bytes(read.instructions), begins)


def previous_response(body: bytes) -> str | None:
    """The ``previous_response_id`` of a request of the Responses API."""
    try:
        return msgspec.json.decode(body, type=_Body).previous_response_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _beginning(prompt: bytes) -> bytes:
    """All system messages that a conversation begins with, and 2 KiB behind them."""
    try:
        messages = msgspec.json.decode(prompt, type=list[Raw])
        num_system = 0
        while msgspec.json.decode(messages[num_system], type=_Message).role in _SYSTEM_ROLES:
            num_system += 1
    except (msgspec.DecodeError, IndexError, RecursionError):
        return prompt[:_BEGINNING_BYTES]  # a text, token ids, or system messages alone
    system = b"".join(bytes(message) for message in messages[:num_system])
    return system + bytes(messages[num_system])[:_BEGINNING_BYTES]


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
