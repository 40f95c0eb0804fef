"""The ``x-ratelimit-*`` headers, as OpenAI's clients read them: what a key's quotas allow a minute,
what is left of that now, and when all of it is there again."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{part}-{what}"
    for part in ("limit", "remaining", "reset")
    for what in ("requests", "tokens")
)


class QuotaLevel(NamedTuple):
    """``left`` is 0 where requests have overdrawn the quota; full again in ``reset_s``."""

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
    """Whole seconds as OpenAI writes them: ``7s``, ``6m0s``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
