"""Reads what a body needs of earlier responses: the conversation that it continues, and the items
that it references."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from coordinator.core.contract import StoredResponses
from coordinator.http.errors import ApiError, quote
from coordinator.http.responses.item_ids import is_response_id, response_of
from coordinator.http.responses.references import References
from coordinator.record.stored_response import ConversationUnavailable
from transport.wire.errors import BatonError

_RETRY_AFTER_S = 2.0
_PARAM = "previous_response_id"
MAX_REFERENCED_BYTES = 4 * 1024 * 1024
"""Limit of the responses whose items an input references, in bytes; the store limits a conversation
alike."""


class _Item(Struct):
    id: str


class _Body(Struct):
    output: list[Raw]


_references = msgspec.json.Decoder(References)
_id_of = msgspec.json.Decoder(_Item)
_body = msgspec.json.Decoder(_Body)
_items = msgspec.json.Decoder(list[Raw])


async def earlier(stored: StoredResponses, owner: str, references: bytes) -> bytes:
    """The JSON of an Earlier for a body with these References (their JSON); b"" if it has none.
    Raises ApiError."""
    named = _references.decode(references)
    if named.previous_response_id is None and not named.item_ids:
        return b""
    try:
        items = await _conversation(stored, owner, named.previous_response_id)
        referenced = await _referenced(stored, owner, named.item_ids)
    except BatonError:
        raise unavailable(_PARAM if named.previous_response_id else "input") from None
    return msgspec.json.encode({"items": items, "referenced": referenced})


def unavailable(param: str) -> ApiError:
    """The error while stored responses cannot be read; it does not say where Redis is."""
    message = "Stored responses cannot be read now: Redis does not answer."
    return ApiError(
        503, message, param=param, code="record_unavailable", retry_after_s=_RETRY_AFTER_S
    )


async def _conversation(stored: StoredResponses, owner: str, response_id: str | None) -> list[Raw]:
    if response_id is None:
        return []
    if not is_response_id(response_id):
        raise _not_found(response_id)
    try:
        turns = await stored.conversation(owner, response_id)
    except ConversationUnavailable as error:
        raise _too_long() if error.too_long else _not_found(error.response_id) from None
    return [item for turn in turns for item in _items.decode(turn)]


async def _referenced(
    stored: StoredResponses, owner: str, item_ids: Sequence[str]
) -> dict[str, Raw]:
    """The items that are stored, by id. Reads one response after another, so that a short body does
    not load all that is stored into this process at once."""
    ids = sorted({found for each in item_ids if (found := response_of(each)) is not None})
    known: dict[str, Raw] = {}
    num_bytes = 0
    for response_id in ids:
        (body,) = await stored.bodies(owner, [response_id])
        if body is None:
            continue
        num_bytes += len(body)
        if num_bytes > MAX_REFERENCED_BYTES:
            message = "The responses whose items the input names are too large to be read at once."
            raise ApiError(400, message, param="input", code="context_length_exceeded")
        known |= {_id_of.decode(item).id: item for item in _body.decode(body).output}
    return {each: known[each] for each in item_ids if each in known}


def _not_found(response_id: str) -> ApiError:
    message = f"Previous response with id {quote(response_id)} not found."
    return ApiError(400, message, param=_PARAM, code="previous_response_not_found")


def _too_long() -> ApiError:
    message = "The earlier responses of this conversation are too large to be continued by an id."
    return ApiError(400, message, param=_PARAM, code="context_length_exceeded")
