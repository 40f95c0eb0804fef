"""One turn of a conversation, from a request and the earlier responses."""

import msgspec
from msgspec import Struct

from coordinator.http.errors import ApiError
from coordinator.http.request_fields import FieldError
from coordinator.http.request_schemas import ChatRequest
from coordinator.http.responses.conversation import (
    ITEM_NOT_FOUND,
    Earlier,
    messages_of,
    new_items,
)
from coordinator.http.responses.request import ResponseRequest, check_number
from coordinator.http.responses.translation import chat_request

MAX_STORED_BYTES = 2 * 1024 * 1024
"""Limit of an input that is stored, in bytes: a larger one would block the event loop for too
long."""


class Turn(Struct, frozen=True):
    """What the route needs besides the chat: the request without its input, and the JSON of the
    items that it adds to the conversation (empty if they are not to be stored)."""

    request: ResponseRequest
    items: msgspec.Raw


def turn_of(request: ResponseRequest, earlier: bytes) -> tuple[ChatRequest, Turn]:
    """The chat and the Turn of ``request``, whose input is removed. ``earlier`` is the JSON of an
    Earlier, or empty. Raises ApiError."""
    try:
        known = Earlier.decoded(earlier)
    except msgspec.DecodeError as error:
        message = f"The earlier responses of this conversation cannot be read: {error}"
        param = "previous_response_id"
        raise ApiError(404, message, param=param, code="record_unreadable") from None
    try:
        items = new_items(request.input, known.referenced)
        conversation = [*known.items, *items]
        check_number(conversation)
        chat = chat_request(request, messages_of(request.instructions, conversation))
    except FieldError as error:
        status = 404 if error.code == ITEM_NOT_FOUND else 400
        param = error.param or "input"
        raise ApiError(status, f"{param}: {error}", param=param, code=error.code) from None
    added = msgspec.json.encode(items) if request.is_stored else b"[]"
    if len(added) > MAX_STORED_BYTES:
        added, request.store = b"[]", False
    request.input = ""
    return chat, Turn(request, msgspec.Raw(added))
