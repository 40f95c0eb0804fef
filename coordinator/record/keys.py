"""Every key that Baton keeps in Redis. The coordinator writes them all, through store.py.

baton:request:{request_id}      hash: RequestRecord's fields (record.py), and `order`, by which
                                writes are compared. Expires 24 h while open, 1 h once ended.
baton:recent                    zset: ids of the last 1,000 requests of all coordinators, by
                                `received_at`. Expires 24 h after the last coordinator left.
baton:open:{coordinator}        set: ids of that coordinator's requests that have not ended.
                                Expires after 24 h.
baton:worker:{instance}         hash: the fields given to `register_worker`, and `coordinator`.
                                Expires after 15 s, refreshed.
baton:coordinator:{instance}    hash: protocol, started_at (Unix s), endpoint. Expires after 15 s,
                                refreshed.
baton:coordinators              set: instances that may have open requests. Expires after 48 h,
                                refreshed.
baton:response:{key}:{id}       hash: a stored response (the previous response, its items, its
                                body). Expires BATON_RESPONSE_TTL after its last use.
baton:responses                 zset: all stored responses with their bytes, by the time at which
                                they expire. Expires with the responses.
baton:responses:bytes           str: the bytes of all stored responses.

A coordinator is alive while its hash exists. An instance listed in `baton:coordinators` without
a hash is dead: any live coordinator fails what its open set lists, then unlists it. A coordinator
that misses its own hash, or finds its own list too short, concludes that the server lost its data,
and writes everything it knows again.

A value of another type under one of these keys is another program's: the next script that needs
the key removes it, and Damage counts it. Unreadable values are left out of answers. A request
whose dead coordinator's list was lost is found through `baton:recent`.
"""

from typing import Final

REQUEST_PREFIX: Final = "baton:request:"
RESPONSE_PREFIX: Final = "baton:response:"
RESPONSES: Final = "baton:responses"
RESPONSE_BYTES: Final = "baton:responses:bytes"
COORDINATOR_PREFIX: Final = "baton:coordinator:"
COORDINATORS: Final = "baton:coordinators"
RECENT: Final = "baton:recent"

OPEN_TTL_S: Final = 24 * 3600
ENDED_TTL_S: Final = 3600
PRESENCE_TTL_S: Final = 15.0
COORDINATORS_TTL_S: Final = 48 * 3600
RECENT_TTL_S: Final = 24 * 3600
RECENT_MAX: Final = 1000


def request(request_id: str) -> str:
    return REQUEST_PREFIX + request_id


def open_requests(coordinator: str) -> str:
    return "baton:open:" + coordinator


def worker(instance: str) -> str:
    return "baton:worker:" + instance


def coordinator(instance: str) -> str:
    return COORDINATOR_PREFIX + instance


def response(owner: str, response_id: str) -> str:
    """Key of a stored response. ``owner`` is the name of the API key that owns it, or "" if no API
    keys are set."""
    return f"{RESPONSE_PREFIX}{owner}:{response_id}"
