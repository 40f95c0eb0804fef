"""References of a body to earlier responses: the response that it continues, and single items.

Finding them reads the whole body. So a heavy one is parsed in another process (bodies/bodies.py).
"""

import msgspec
from msgspec import Raw, Struct


class ReferringBody(Struct):
    """The fields of ``POST /v1/responses`` that reference earlier responses."""

    previous_response_id: str | None = None
    input: Raw = Raw()


class References(Struct, frozen=True):
    """The ids that a body references."""

    previous_response_id: str | None
    item_ids: list[str]


class _Item(Struct):
    type: str = ""
    id: str | None = None


_items = msgspec.json.Decoder(list[_Item])


def references_of(body: ReferringBody) -> References:
    """The references of a body; no items if its input is malformed, which the parser of the whole
    body reports."""
    return References(body.previous_response_id, sorted(_item_ids(bytes(body.input))))


def _item_ids(given: bytes) -> set[str]:
    if b"item_reference" not in given or not given.startswith(b"["):
        return set()
    try:
        items = _items.decode(given)
    except (msgspec.DecodeError, RecursionError):
        return set()
    return {item.id for item in items if item.type == "item_reference" and item.id is not None}
