"""The ids of responses and of the items of their output. An item's id contains that of its
response, so it can be found by its id alone."""

import re
from typing import Literal

ItemPrefix = Literal["msg", "rs", "fc"]

_RESPONSE = re.compile(r"resp_[0-9a-f]{32}")
_ITEM = re.compile(r"(?:msg|rs|fc)_([0-9a-f]{32})_[0-9]{1,6}")


def response_id(request_id: str) -> str:
    return f"resp_{request_id}"


def is_response_id(text: str) -> bool:
    return _RESPONSE.fullmatch(text) is not None


def item_id(prefix: ItemPrefix, response_id: str, index: int) -> str:
    """The id of item ``index`` of a response's output."""
    return f"{prefix}_{response_id.removeprefix('resp_')}_{index}"


def response_of(item_id: str) -> str | None:
    """The id of the response that has this item; None if no response of this server can have it."""
    found = _ITEM.fullmatch(item_id)
    return f"resp_{found[1]}" if found else None
