"""Which requests share prefixes: those whose salts are the same.

A prompt that begins like an earlier one is answered sooner, so the time of an answer tells that
there was such a prompt. A ``cache_salt`` (vLLM's field), and where the setting says so the name of
the API key, limit this to those who have the same.
"""

from hashlib import blake2b
from typing import Annotated, Literal, get_args

from msgspec import Meta

Isolation = Literal["off", "key"]
ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)
CacheSalt = Annotated[str, Meta(min_length=1, max_length=1024)]

_DIGEST_BYTES = 16


def salt_of(cache_salt: str | None, isolated_key: str) -> str:
    """What workers get instead of the client's salt and the name of its API key ("" where keys are
    not isolated): a digest of both, or "" for a request that shares with all others of that kind. A
    key's name has no "\\0"."""
    if not isolated_key and not cache_salt:
        return ""
    text = f"{isolated_key}\0{cache_salt or ''}"
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
