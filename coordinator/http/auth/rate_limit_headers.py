"""The ``x-ratelimit-*`` headers that OpenAI's clients read: what a key's quotas allow per minute,
what is left of that now, and when they are full again."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{part}-{what}"
    for part in ("limit", "remaining", "reset")
    for what in ("requests", "tokens")
)


class QuotaLevel(NamedTuple):
    """State of a quota. ``left`` is 0 if requests have overdrawn it; it is full again in
    ``reset_s``."""

    limit: int
    left: int
    reset_s: float


def rate_limit_headers(levels: Mapping[str, QuotaLevel | None]) -> Iterator[tuple[bytes, bytes]]:
    """Three headers for each of ``levels`` ("requests", "tokens") that has a limit."""
    for what, level in levels.items():
        if level is not None:
            yield f"x-ratelimit-limit-{what}".encode(), str(level.limit).encode()
            yield f"x-ratelimit-remaining-{what}".encode(), str(level.left).encode()
            yield f"x-ratelimit-reset-{what}".encode(), duration(level.reset_s).encode()


def duration(seconds: float) -> str:
    """Whole seconds in OpenAI's notation: ``7s``, ``6m0s``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
