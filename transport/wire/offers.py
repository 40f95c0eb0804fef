"""What a worker keeps where a peer may read it: a finished prompt, and prefixes of earlier ones."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from transport.wire.fields import Count, Positive, WireStruct
from transport.wire.prefix import KEY_BYTES

Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class Offer(WireStruct, frozen=True):
    """Pages and state of a finished prompt, readable until released, or of a kept prefix, readable
    until evicted.

    Valid only while the exporter's epoch of ``state_slot`` equals ``epoch``, which the puller
    checks after its copy. The cache has ``num_tokens`` tokens. ``digest`` is their hash where every
    handoff is verified, else empty.
    """

    instance: str
    block_table: tuple[Count, ...]
    state_slot: Count
    epoch: int
    num_tokens: Positive
    digest: str = ""


class PrefixName(WireStruct, frozen=True):
    """The first ``num_tokens`` of a sequence: ``key`` is theirs, ``pages_key`` that of their whole
    pages (prefix.py)."""

    key: Key
    pages_key: Key
    num_tokens: Positive

    def begins(self, key: bytes, num_tokens: int, page_keys: Sequence[bytes]) -> bool:
        """Whether the prefix of that key and length is this one, or a longer one that has its whole
        pages. ``page_keys`` are those of its first 0, 1, ... whole pages."""
        longer = num_tokens > self.num_tokens and self.pages_key in page_keys[1:]
        return key == self.key or longer


class KeptPrefix(WireStruct, frozen=True):
    """A prefix of earlier requests that a worker keeps, with the state behind its last token.

    ``key`` is the prefix's, ``pages_key`` that of its whole pages (prefix.py). ``offer`` says where
    a peer may read it, for as long as the state slot has the offer's epoch; None: it lies in the
    worker's host memory, where no peer can read it.
    """

    key: Key
    pages_key: Key
    num_tokens: Positive
    offer: Offer | None


class PrefixesChanged(WireStruct, frozen=True, tag="prefixes-changed"):
    """What the worker keeps of earlier requests, since the message before; all of it, also nothing,
    when it has just joined: one that never sends this keeps none, so no peer opens its memory for
    that. ``removed`` are keys; one that is also ``added`` now lies elsewhere."""

    added: tuple[KeptPrefix, ...] = ()
    removed: tuple[Key, ...] = ()
