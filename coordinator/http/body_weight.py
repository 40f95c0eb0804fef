"""What a body holds besides text and token ids, bounded before anything is made of it.

Checking a request stops every stream while it lasts. Text and ids cost nanoseconds a byte; lists,
objects and wrong values cost up to a thousand times that, and a request needs little of them. So a
long body is first read without making anything of it: only where its fields begin and end.
"""

from typing import TypeVar

import msgspec

from coordinator.http.errors import ApiError, invalid
from coordinator.http.prompts import check_lookup, too_long

STRUCTURE_BYTES = 512 * 1024
"""A body may hold so much besides text and token ids."""
WEIGHED_FROM = 64 * 1024
"""A shorter body is not weighed: whatever it holds is soon read."""

_T = TypeVar("_T")
_MAX_QUOTES = 128 * 1024  # of 16,384 messages: what is read in parts has no more of them
_TEXT, _LIST = ord('"'), ord("[")
_OF_IDS = b"0123456789-,[] \t\r\n"


class _Body(msgspec.Struct):
    """The fields that may be long; none means that much, and the rest is skipped."""

    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    tokens: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct, gc=False):
    role: msgspec.Raw
    content: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()


class _Part(msgspec.Struct, gc=False):
    type: msgspec.Raw
    text: msgspec.Raw = msgspec.Raw()


def check_weight(body: bytes, *, max_prompts: int, max_len: int) -> None:
    """Raises ApiError for a long body that is no JSON, has more prompts than ``max_prompts`` or
    more ids in one than ``max_len``, or holds too much besides. What is left may still be wrong,
    and is quickly told so by its schema."""
    if len(body) <= WEIGHED_FROM:
        return
    try:
        fields = msgspec.json.decode(body, type=_Body)
        weightless = (
            _prompt_bytes(bytes(fields.prompt), max_prompts, max_len)
            + _messages_bytes(fields.messages)
            + _tokens_bytes(bytes(fields.tokens), max_len)
        )
    except msgspec.ValidationError:
        raise ApiError(400, "the body must be a JSON object", code="invalid_value") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"Invalid JSON: {error}", code="invalid_json") from None
    if len(body) - weightless > STRUCTURE_BYTES:
        raise _too_heavy(f"{len(body) - weightless} bytes")


def _prompt_bytes(prompt: bytes, max_prompts: int, max_len: int) -> int:
    """Bytes of text or ids in ``prompt``, in any of its four shapes."""
    if prompt[:1] == b'"':
        return len(prompt)
    if prompt[:1] == b"[" and prompt[1:].lstrip()[:1] == b'"':
        _check_number(_num_quotes(prompt) // 2, max_prompts)
        _check_number(len(_decoded("prompt", prompt, list[str])), max_prompts)
        return len(prompt)
    if not _only_ids(prompt):
        return 0
    _check_number(prompt.count(b"[") - 1, max_prompts)
    longest = max(ids.count(b",") for ids in prompt.split(b"]"))
    if longest > max_len:
        raise too_long("prompt", longest, max_len)
    return len(prompt)


def _tokens_bytes(tokens: bytes, max_len: int) -> int:
    if not _only_ids(tokens) or tokens.count(b"[") != 1:
        return 0
    check_lookup("tokens", tokens.count(b","), max_len)
    return len(tokens)


def _check_number(num_prompts: int, max_prompts: int) -> None:
    if num_prompts > max_prompts:
        raise invalid("prompt", f"at most {max_prompts} prompts a request, got {num_prompts}")


def _only_ids(raw: bytes) -> bool:
    return not raw.translate(None, _OF_IDS)


def _messages_bytes(messages: msgspec.Raw) -> int:
    if _kind(messages) != _LIST:
        return 0
    if (num_quotes := _num_quotes(bytes(messages))) > _MAX_QUOTES:
        raise _too_heavy(f"at least {num_quotes // 2} strings")
    return sum(
        _content_bytes(message.content) + _text_bytes(message.reasoning_content)
        for message in _decoded("messages", messages, list[_Message])
    )


def _content_bytes(content: msgspec.Raw) -> int:
    if _kind(content) != _LIST:
        return _text_bytes(content)
    parts = _decoded("messages", content, list[_Part])
    return sum(_text_bytes(part.text) for part in parts)


def _decoded(param: str, raw: bytes | msgspec.Raw, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise invalid(param, str(error)) from None


def _num_quotes(raw: bytes) -> int:
    """How many quotes begin or end a string: never too many, and half of them at least, since one
    that follows an escaped backslash is not counted."""
    return raw.count(b'"') - raw.count(b'\\"')


def _too_heavy(what: str) -> ApiError:
    return ApiError(
        413,
        f"the body holds {what} besides its text and token ids; at most {STRUCTURE_BYTES} bytes "
        "are taken",
        code="body_too_large",
    )


def _text_bytes(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes if _kind(raw) == _TEXT else 0


def _kind(raw: msgspec.Raw) -> int:
    """The first byte; 0 for a field that is not there."""
    view = memoryview(raw)
    return view[0] if view.nbytes else 0
