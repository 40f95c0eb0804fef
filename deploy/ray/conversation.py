"""Finds the requests of one conversation, by their bodies.

Requests with the same ``conversation_key`` are sent to the same node, whose prefix cache has their
earlier turns. The key is made of the parts that all turns of a conversation share:

1. the session that the request names: the header ``x-session-id``, or ``prompt_cache_key``;
2. else its tools, its system prompt, and the first 2 KiB after them.

So conversations that share only a system prompt have different keys and spread over the nodes, and
each node computes that prompt once. Prompts that begin with the same long document share a key.
Clients repeat earlier turns byte by byte, so the JSON is compared without parsing it.
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
    """The fields of all APIs that can be at the beginning of a prompt."""

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
    """The key, 16 bytes; b"" for a request without a prompt, or with an unreadable body."""
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
    """The system messages at the beginning of a conversation, and the 2 KiB after them."""
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
