"""What must hold once a fault is over and the load has paused."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx

from coordinator.record import keys
from tests.e2e.records import TERMINAL
from tests.soak.faults import Fault
from tests.soak.load import Seen
from tests.soak.site import Site

POLL_S = 0.1
RELEASE_S = 5.0
RECORDED_S = 40.0
"""A killed coordinator's requests are failed by the next one once its presence has expired."""
_ENDED = re.compile(r'^baton_requests_total\{.*state="(\w+)".*\} (\S+)$', re.MULTILINE)
# What the record may say beside the client's own word: where no end reached a client, the
# coordinator may have come to one all the same.
_MAY_BE_RECORDED = {
    "finished": {"finished"},
    "failed": {"failed"},
    "cancelled": {"cancelled", "finished"},
    "broken": {"failed", "cancelled", "finished"},
}


@dataclass(frozen=True)
class Window:
    """A fault and the requests around it. Times are ``time.monotonic``: ``began`` and ``over`` of
    the fault itself. ``restarted``: the coordinator is another one than before; ``before`` are its
    counters when the load began."""

    fault: Fault
    began: float
    over: float
    seen: Sequence[Seen]
    restarted: bool
    before: dict[str, float]


async def until(what: Callable[[], Awaitable[str]], within_s: float) -> tuple[float, str]:
    """Wait until ``what`` says ""; how long that took, and the last thing it said else."""
    began = time.monotonic()
    while said := await what():
        if time.monotonic() - began > within_s:
            return time.monotonic() - began, said
        await asyncio.sleep(POLL_S)
    return time.monotonic() - began, ""


def answers(window: Window) -> list[str]:
    """Wrong tokens, lost and failed requests."""
    found = [seen.wrong for seen in window.seen if seen.wrong]
    for seen in window.seen:
        excused = seen.outcome in ("finished", "cancelled") or (
            seen.outcome == "broken" and (window.fault.breaks or window.fault.closes)
        )
        if not excused:
            told = f"request {seen.http_id}: {seen.outcome} after {len(seen.token_ids)} tokens"
            found.append(f"{told}: {seen.detail}")
    return found


async def counters(http: httpx.AsyncClient) -> dict[str, float]:
    """Requests that the coordinator has ended, by terminal state."""
    text = (await http.get("/metrics")).text
    ended: dict[str, float] = {}  # by state, whatever the reason
    for state, value in _ENDED.findall(text):
        ended[state] = ended.get(state, 0.0) + float(value)
    return ended


async def records(site: Site, window: Window) -> str:
    """The difference between what Redis knows of requests and what their clients saw, or ""."""
    return await asyncio.to_thread(_records, site, window)


def _records(site: Site, window: Window) -> str:
    to_wall = time.time() - time.monotonic()
    since = min(seen.started for seen in window.seen) + to_wall - 1.0
    with site.redis.pipeline(transaction=False) as pipeline:
        for request_id in site.redis.zrangebyscore(keys.RECENT, since, "+inf"):
            pipeline.hgetall(keys.request(request_id))
        found = [record for record in pipeline.execute(raise_on_error=False) if record]
    bad = [record for record in found if not isinstance(record, dict)]
    if bad:
        return f"{len(bad)} records cannot be read: {bad[0]}"
    listed_since = 0.0
    if len(found) >= keys.RECENT_MAX:  # older ones are no longer listed
        listed_since = min(float(record.get("received_at", 0.0)) for record in found) + 1.0
    by_client = Counter(record["http_id"] for record in found)
    if twice := [http_id for http_id, count in by_client.items() if count > 1]:
        return f"request {twice[0]} was accepted twice"
    states = {record["http_id"]: record["state"] for record in found}
    for seen in window.seen:
        state = states.get(seen.http_id)
        if state is None:
            never_taken = seen.outcome in ("refused", "broken", "cancelled")
            forgotten = window.fault.forgets and seen.ended < window.over
            if never_taken or forgotten or seen.started + to_wall < listed_since:
                continue
            return f"request {seen.http_id} {seen.outcome} for its client and has no record"
        if seen.outcome == "broken" and not window.fault.breaks:
            return f"request {seen.http_id} was accepted, is recorded {state}, and got no answer"
        allowed = _MAY_BE_RECORDED.get(seen.outcome, TERMINAL)
        if state not in allowed:
            return f"request {seen.http_id} {seen.outcome} for its client and is recorded {state}"
    still_open = list(site.redis.scan_iter(keys.open_requests("*"), count=1000))
    return f"still listed as open: {still_open}" if still_open else ""


async def counted(http: httpx.AsyncClient, window: Window) -> str:
    """The difference between the ends that the coordinator has counted and those that clients saw,
    or "". One that has started anew counts from zero: then nothing is compared."""
    if window.restarted:
        return ""
    now = await counters(http)
    grown = {state: now[state] - window.before.get(state, 0.0) for state in now}
    outcomes = Counter(seen.outcome for seen in window.seen)
    # The response to a client that leaves may have been whole already.
    finished = outcomes["finished"]
    left = outcomes["cancelled"]
    cancelled = grown.get("cancelled", 0.0)
    if (
        finished <= grown.get("finished", 0.0) <= finished + left
        and cancelled <= left
        and grown.get("failed", 0.0) == outcomes["failed"]
    ):
        return ""
    return f"the coordinator counted {grown}, the clients {dict(outcomes)}"
