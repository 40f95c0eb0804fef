"""A response that is stored for its client."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StoredResponse:
    """A stored response. ``previous_id``: the response that this one continues, or "". ``items``:
    JSON array of the items that it adds to the conversation. ``body``: its own JSON."""

    response_id: str
    previous_id: str
    items: bytes
    body: bytes


class ConversationUnavailable(Exception):
    """A conversation cannot be continued: ``response_id`` is not stored (any more), or, with
    ``too_long``, the conversation is larger than may be read at once."""

    def __init__(self, response_id: str, *, too_long: bool = False) -> None:
        super().__init__(response_id)
        self.response_id = response_id
        self.too_long = too_long
