"""The items that a stored response had for input, as its client lists them. Pure."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from coordinator.http.errors import invalid
from coordinator.http.response_schemas import Body

Order = Literal["asc", "desc"]
_PART = {"assistant": "output_text"}


class _Identified(msgspec.Struct):
    id: str | None = None


_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_IDENTIFIED = msgspec.json.Decoder(_Identified)
"""Only the items of a page are decoded whole: a conversation may have tens of thousands."""


class InputItems(Body, kw_only=True):
    """A page of the list; ``data`` has the fields of the items as a request has them."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


def input_items(
    turns: Sequence[bytes], body: bytes, *, limit: int, order: Order, after: str | None
) -> InputItems:
    """A page of the input of the last of ``turns``: all items of the conversation before its
    output. ``turns``: JSON of the items of each response, oldest first. ``body``: that of the last
    one. Raises ApiError for an ``after`` that names no item."""
    response = msgspec.json.decode(body)
    items = [item for turn in turns for item in _ITEMS.decode(turn)]
    items = items[: len(items) - len(response["output"])]
    listed = [(item, f"{response['id']}_input_{i}") for i, item in enumerate(items)]
    if order == "desc":
        listed.reverse()
    start = 0
    if after is not None:
        ids = [_IDENTIFIED.decode(item).id or default for item, default in listed]
        if after not in ids:
            raise invalid("after", "no item of this input has this id")
        start = ids.index(after) + 1
    shown = listed[start : start + limit]
    page = [_listed(msgspec.json.decode(item), default) for item, default in shown]
    return InputItems(
        data=page,
        first_id=page[0]["id"] if page else "",
        last_id=page[-1]["id"] if page else "",
        has_more=len(listed) > start + limit,
    )


def _listed(item: dict[str, Any], item_id: str) -> dict[str, Any]:
    """An item with what a request may leave out: its id and type, its content as parts."""
    found = {"type": "message", "status": "completed", **item, "id": item.get("id") or item_id}
    if found["type"] == "message" and isinstance(found["content"], str):
        part: dict[str, Any] = {"type": _PART.get(found["role"], "input_text")}
        part["text"] = found["content"]
        if part["type"] == "output_text":
            part["annotations"] = []
        found["content"] = [part]
    if found["type"] == "reasoning":
        found.setdefault("summary", [])
    return found
