"""Limits which requests share prefixes of the prefix cache: those with the same salt.

A prompt that begins like an earlier prompt is answered sooner, so the time of an answer tells that
there was such a prompt. A ``cache_salt`` (vLLM's field), and the name of the API key if the setting
says so, limit sharing to requests that have the same.
"""

from hashlib import blake2b
from typing import Annotated, Literal, get_args

from msgspec import Meta

Isolation = Literal["off", "key"]
ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)
CacheSalt = Annotated[str, Meta(min_length=1, max_length=1024)]

_DIGEST_BYTES = 16


def salt_of(cache_salt: str | None, isolated_key: str) -> str:
    """The salt that workers get: a digest of the client's salt and of the name of its API key (""
    if keys are not isolated). If both are empty it is "", and the request shares with all others of
    that kind. A key's name has no "\\0"."""
    if not isolated_key and not cache_salt:
        return ""
    text = f"{isolated_key}\0{cache_salt or ''}"
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
