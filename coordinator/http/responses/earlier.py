"""What a body needs of earlier responses: the conversation that it continues, and the items that it
only names."""

import msgspec
from msgspec import Raw, Struct

from coordinator.core.contract import KeptResponses
from coordinator.http.errors import ApiError, quote
from coordinator.http.responses.item_ids import is_response_id, response_of
from coordinator.record.kept_response import ConversationUnavailable
from transport.wire.errors import BatonError

_RETRY_AFTER_S = 2.0
_PARAM = "previous_response_id"


class _Named(Struct):
    """An item of an input, as far as its name goes."""

    type: str = ""
    id: str | None = None


class _Wanted(Struct):
    previous_response_id: str | None = None
    input: Raw = Raw()


class _Body(Struct):
    output: list[Raw]


_wanted = msgspec.json.Decoder(_Wanted)
_named = msgspec.json.Decoder(list[_Named])
_id_of = msgspec.json.Decoder(_Named)
_body = msgspec.json.Decoder(_Body)
_items = msgspec.json.Decoder(list[Raw])


async def earlier(kept: KeptResponses, owner: str, body: bytes) -> bytes:
    """The JSON of an Earlier for this body, b"" where it needs none or is none; raises ApiError."""
    try:
        wanted = _wanted.decode(body)
        names = _names(bytes(wanted.input))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""  # the parser says what is wrong
    if wanted.previous_response_id is None and not names:
        return b""
    try:
        items = await _conversation(kept, owner, wanted.previous_response_id)
        referenced = await _referenced(kept, owner, names)
    except BatonError:
        raise unavailable(_PARAM if wanted.previous_response_id else "input") from None
    return msgspec.json.encode({"items": items, "referenced": referenced})


def unavailable(param: str) -> ApiError:
    """The answer while what is kept cannot be read; it does not say where Redis is."""
    message = "Stored responses cannot be read now: Redis does not answer."
    return ApiError(
        503, message, param=param, code="record_unavailable", retry_after_s=_RETRY_AFTER_S
    )


def _names(given: bytes) -> set[str]:
    """The ids of the items that the input only names."""
    if b"item_reference" not in given or not given.startswith(b"["):
        return set()
    items = _named.decode(given)
    return {item.id for item in items if item.type == "item_reference" and item.id is not None}


async def _conversation(kept: KeptResponses, owner: str, response_id: str | None) -> list[Raw]:
    if response_id is None:
        return []
    if not is_response_id(response_id):
        raise _not_found(response_id)
    try:
        turns = await kept.conversation(owner, response_id)
    except ConversationUnavailable as error:
        raise _too_long() if error.too_long else _not_found(error.response_id) from None
    return [item for turn in turns for item in _items.decode(turn)]


async def _referenced(kept: KeptResponses, owner: str, names: set[str]) -> dict[str, Raw]:
    ids = sorted({found for name in names if (found := response_of(name)) is not None})
    if not ids:
        return {}
    bodies = await kept.bodies(owner, ids)
    items = [item for body in bodies if body is not None for item in _body.decode(body).output]
    known = {_id_of.decode(item).id or "": item for item in items}
    return {name: known[name] for name in names & known.keys()}


def _not_found(response_id: str) -> ApiError:
    message = f"Previous response with id {quote(response_id)} not found."
    return ApiError(400, message, param=_PARAM, code="previous_response_not_found")


def _too_long() -> ApiError:
    message = "The earlier responses of this conversation are too large to be continued by an id."
    return ApiError(400, message, param=_PARAM, code="context_length_exceeded")
