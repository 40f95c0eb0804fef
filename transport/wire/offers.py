"""Structs about caches that peers may read: offers of finished prompts, and kept prefixes."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from transport.wire.fields import Count, Positive, WireStruct
from transport.wire.prefix import KEY_BYTES

Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class Offer(WireStruct, frozen=True):
    """Pages and state of a finished prompt, readable until released, or of a kept prefix, readable
    until evicted.

    Valid only while the exporter's epoch of ``state_slot`` equals ``epoch``, which the puller
    checks after its copy. The cache has ``num_tokens`` tokens. ``digest``: hash of the cache if
    every handoff is verified, otherwise "".
    """

    instance: str
    block_table: tuple[Count, ...]
    state_slot: Count
    epoch: int
    num_tokens: Positive
    digest: str = ""


class PrefixName(WireStruct, frozen=True):
    """The name of a sequence's first ``num_tokens`` tokens: their ``key``, and the ``pages_key`` of
    their whole pages (prefix.py)."""

    key: Key
    pages_key: Key
    num_tokens: Positive

    def begins(self, key: bytes, num_tokens: int, page_keys: Sequence[bytes]) -> bool:
        """True if the prefix with this key and length is the named one, or a longer one that has
        its whole pages. ``page_keys``: the keys of its first 0, 1, ... whole pages."""
        longer = num_tokens > self.num_tokens and self.pages_key in page_keys[1:]
        return key == self.key or longer


class KeptPrefix(WireStruct, frozen=True):
    """A prefix of earlier requests that a worker keeps, with the state behind its last token.

    ``key`` names the prefix, ``pages_key`` its whole pages (prefix.py). ``offer`` says where a peer
    may read it, as long as the state slot has the offer's epoch; None: it is in the worker's host
    memory, where no peer can read it. ``page_keys``: the keys of its first 1, 2, ... whole pages,
    if the model has no states, so that these pages alone are a prefix; else none.
    """

    key: Key
    pages_key: Key
    num_tokens: Positive
    offer: Offer | None
    page_keys: tuple[Key, ...] = ()

    def part(self, num_pages: int, page_size: int) -> "KeptPrefix":
        """The prefix of its first pages. A digest is that of the whole, so a part of a prefix with
        a digest has no offer."""
        key, num_tokens, offer = self.page_keys[num_pages - 1], num_pages * page_size, self.offer
        if offer is not None:
            pages = offer.block_table[:num_pages]
            offer = replace(offer, block_table=pages, num_tokens=num_tokens)
        if offer is not None and offer.digest:
            offer = None
        return KeptPrefix(key, key, num_tokens, offer, self.page_keys[:num_pages])


class PrefixesChanged(WireStruct, frozen=True, tag="prefixes-changed"):
    """Changes of the prefixes that the worker keeps, since its previous message. A worker that has
    just joined lists all of them, and sends the message even if there are none: peers do not open
    the memory of a worker that never sends it. ``removed`` are keys; a key that is also in
    ``added`` names a prefix that has moved."""

    added: tuple[KeptPrefix, ...] = ()
    removed: tuple[Key, ...] = ()
