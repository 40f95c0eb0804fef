"""What a body names of earlier responses: the response that it continues, and single items.

Finding this reads the whole body. So a heavy one is read in another process, as ``Bodies`` does it.
"""

import msgspec
from msgspec import Raw, Struct


class ReferringBody(Struct):
    """A body of ``POST /v1/responses``, as far as it names earlier responses."""

    previous_response_id: str | None = None
    input: Raw = Raw()


class References(Struct, frozen=True):
    """The ids that a body names."""

    previous_response_id: str | None
    item_ids: list[str]


class _Item(Struct):
    type: str = ""
    id: str | None = None


_items = msgspec.json.Decoder(list[_Item])


def references_of(body: ReferringBody) -> References:
    """No items where the input is none; the parser of the whole body says what is wrong."""
    return References(body.previous_response_id, sorted(_item_ids(bytes(body.input))))


def _item_ids(given: bytes) -> set[str]:
    if b"item_reference" not in given or not given.startswith(b"["):
        return set()
    try:
        items = _items.decode(given)
    except (msgspec.DecodeError, RecursionError):
        return set()
    return {item.id for item in items if item.type == "item_reference" and item.id is not None}
