"""Prefixes that workers of the tests keep."""

from collections.abc import Sequence

from transport.wire.offers import KeptPrefix, Offer
from transport.wire.prefix import PrefixKeys
from transport.wire.token_ids import packed

PAGE = 16


def keys_of(ids: Sequence[int], salt: str = "") -> PrefixKeys:
    return PrefixKeys("m", salt, packed(ids), PAGE)


def kept(
    ids: Sequence[int],
    instance: str = "w",
    *,
    on_host: bool = False,
    salt: str = "",
    has_states: bool = True,
) -> KeptPrefix:
    """A prefix of these tokens, kept by the worker ``instance``, of model "m"."""
    keys, num_tokens = keys_of(ids, salt), len(ids)
    pages = tuple(range(-(-num_tokens // PAGE)))
    offer = None if on_host else Offer(instance, pages, 0, 1, num_tokens)
    page_keys = () if has_states else tuple(keys.pages_up_to(keys.num_pages)[1:])
    pages_key = keys.pages(keys.num_pages)
    return KeptPrefix(keys.prefix(num_tokens), pages_key, num_tokens, offer, page_keys)
