"""Headers by which a request asks for longer times than the pools keep for others.

A decode worker then helps later with its prompt (core/soft_pools.py). The pools keep the shortest
times of all open requests."""

from math import inf

from fastapi import Request

from coordinator.http.errors import invalid
from coordinator.http.warning_header import warn

TTFT_HEADER, TPOT_HEADER = "x-baton-target-ttft-ms", "x-baton-target-tpot-ms"


def asked_times(http: Request, *, pools_follow: bool) -> tuple[float, float]:
    """The seconds to the first token, and for each other one, that a request asks for; 0 for
    nothing. Warns of a header that does not count, unless ``pools_follow`` the load. Raises
    ApiError for one that is no time."""
    ttft_s, tpot_s = (_seconds(http, name) for name in (TTFT_HEADER, TPOT_HEADER))
    if pools_follow:
        return ttft_s, tpot_s
    for name, seconds in ((TTFT_HEADER, ttft_s), (TPOT_HEADER, tpot_s)):
        if seconds:
            warn(http.scope, f"{name} is ignored: the pools do not follow the load")
    return 0.0, 0.0


def _seconds(http: Request, name: str) -> float:
    """The value of a header in milliseconds; 0 without it."""
    given = http.headers.get(name)
    if given is None:
        return 0.0
    try:
        milliseconds = float(given)
    except ValueError:
        milliseconds = 0.0
    if not 0 < milliseconds < inf:
        raise invalid(name, f"{given!r} is not a time above 0, in milliseconds")
    return milliseconds / 1e3
