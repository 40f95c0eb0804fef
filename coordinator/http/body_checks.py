"""What a body is refused for while it is parsed, as errors that name the field at fault.

msgspec refuses what is not JSON (NaN, deep nesting, lone surrogates) and stops at the first error.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate

import msgspec

from coordinator.http.chat_schemas import MAX_MESSAGES
from coordinator.http.errors import ApiError, invalid, quote
from coordinator.http.request_fields import UNSUPPORTED, FieldError

STRUCTURE_BYTES = 512 * 1024
"""Limit of the bytes of a body besides its prompt, messages, input, system prompt or tokens."""

READABLE_DEPTH = 900
"""A body that nests at most this deep is decoded. Python 3.11 could decode 1,000 levels, together
with the frames of the callers; later versions decode more."""

_QUICK_BYTES = 2 * 1024 * 1024

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""One without an end goes on to the end: else each of its quotes would begin another search."""
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_STEP = [(each in b"[{") - (each in b"]}") for each in range(256)]

_AT = " - at `$"
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_PART = re.compile(r"(.*\.content)\[.*")
_SURROGATES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[^u]|u(?![dD][89a-fA-F]))"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_UNKNOWN_TYPE = re.compile(r"Invalid (?:enum )?value '(.*)'", re.DOTALL)
_OF_A_TYPE = re.compile(r"(?:(tools)|.*\.content)\[\d+\]\.type")


class _LongFields(msgspec.Struct):
    """The fields that may be long, and those that some clients send too long. Others are
    skipped."""

    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    tokens: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()

    tools: msgspec.Raw = msgspec.Raw()
    response_format: msgspec.Raw = msgspec.Raw()
    output_config: msgspec.Raw = msgspec.Raw()
    output_format: msgspec.Raw = msgspec.Raw()
    structured_outputs: msgspec.Raw = msgspec.Raw()
    guided_json: msgspec.Raw = msgspec.Raw()
    guided_regex: msgspec.Raw = msgspec.Raw()
    guided_choice: msgspec.Raw = msgspec.Raw()
    guided_grammar: msgspec.Raw = msgspec.Raw()
    regex: msgspec.Raw = msgspec.Raw()
    ebnf: msgspec.Raw = msgspec.Raw()
    structural_tag: msgspec.Raw = msgspec.Raw()
    grammar: msgspec.Raw = msgspec.Raw()
    json_schema: msgspec.Raw = msgspec.Raw()
    allowed_token_ids: msgspec.Raw = msgspec.Raw()
    bad_words: msgspec.Raw = msgspec.Raw()


_MAY_BE_LONG = ("prompt", "messages", "tokens", "input", "system")
_long_fields = msgspec.json.Decoder(_LongFields)


def has_messages(body: bytes) -> bool:
    """True if a body has the field of a chat's messages. Raises msgspec's errors."""
    return bool(bytes(_long_fields.decode(body).messages))


def nests_too_deeply(body: bytes) -> bool:
    """True if arrays and objects are nested deeper than ``READABLE_DEPTH``, or brackets of a body
    that is no JSON."""
    if body.count(b"[") + body.count(b"{") <= READABLE_DEPTH:
        return False
    brackets = _STRINGS.sub(b"", body).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > READABLE_DEPTH


def check_long_fields(pieces: Sequence[bytes]) -> None:
    """Raises ApiError if a field of the body is too long for any request. Takes at most 1 ms, so it
    leaves larger bodies, and all other faults, to ``parse``."""
    if STRUCTURE_BYTES < sum(map(len, pieces)) <= _QUICK_BYTES:
        with suppress(msgspec.DecodeError, RecursionError):
            check_structure(b"".join(pieces))


def check_structure(body: bytes) -> None:
    """Raises ApiError for a body whose values would take long to build, although no prompt needs
    them."""
    fields = _long_fields.decode(body)
    # Quotes within a text are escaped, so this counts no more than the roles.
    if (num_roles := bytes(fields.messages).count(b'"role"')) > MAX_MESSAGES:
        raise invalid("messages", f"at most {MAX_MESSAGES} messages and parts, got {num_roles}")
    # Each item of an input, and each of its parts, has a role or a type.
    items = bytes(fields.input)
    if (num_marks := items.count(b'"role"') + items.count(b'"type"')) > 2 * MAX_MESSAGES:
        raise invalid("input", f"at most {MAX_MESSAGES} items and parts, got {num_marks // 2}")
    for name in _LongFields.__struct_fields__:
        num_bytes = memoryview(getattr(fields, name)).nbytes
        if name not in _MAY_BE_LONG and num_bytes > STRUCTURE_BYTES:
            raise invalid(name, f"has {num_bytes} bytes; at most {STRUCTURE_BYTES} are taken")
    long = sum(memoryview(getattr(fields, name)).nbytes for name in _MAY_BE_LONG)
    if len(body) - long > STRUCTURE_BYTES:
        message = (
            f"the body holds {len(body) - long} bytes besides its prompt, messages, input, "
            f"system prompt or tokens; at most {STRUCTURE_BYTES} are taken"
        )
        raise ApiError(413, message, code="body_too_large")


def from_validation(error: msgspec.ValidationError) -> ApiError:
    """The message of msgspec, ``text - at `$.path` ``, as a 400."""
    text, _, path = str(error).rpartition(_AT)
    param = path.rstrip("`").removeprefix(".") if text else ""
    text, code = text or path, "invalid_value"
    if isinstance(error.__cause__, FieldError):
        param, code = _joined(param, error.__cause__.param), error.__cause__.code
    elif missing := _MISSING.fullmatch(text):
        param, text = _joined(param, missing[1]), f"{missing[1]} is missing"
    if not param:
        return ApiError(400, "the body must be a JSON object", code="invalid_value")
    if (unknown := _UNKNOWN_TYPE.fullmatch(text)) and (found := _OF_A_TYPE.fullmatch(param)):
        what = found[1] or "parts"
        text, code = f"{what} of type {quote(unknown[1])} are not supported", UNSUPPORTED
    if part := _PART.fullmatch(param):
        param = part[1]  # OpenAI names the content of the message, not its part
    return invalid(param, text.replace(" | null`", "`"), code)


def half_of_a_pair(body: bytes) -> str:
    """What is wrong if the body has an escape for half of a UTF-16 surrogate pair, else ""."""
    for found in _SURROGATES.finditer(body):
        if found["half"]:
            half, at = found["half"].decode(), found.start("half")
            return f"{half} at byte {at} is half of a surrogate pair, which no text can have"
    return ""


def _joined(path: str, field: str) -> str:
    return f"{path}.{field}" if path and field else path or field
