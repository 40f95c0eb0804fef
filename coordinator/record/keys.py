"""Every key Baton keeps in Redis. All are written by the coordinator, through store.py.

key                             type  holds                                   expires after
baton:request:{request_id}      hash  RequestRecord's fields (record.py), and  24 h while open,
                                      `order`, by which writes are compared    1 h once ended
baton:recent                    zset  ids of the last 1,000 requests of all    24 h, refreshed
                                      coordinators, by `received_at`
baton:open:{coordinator}        set   ids of that coordinator's requests that  24 h
                                      have not ended
baton:worker:{instance}         hash  what `register_worker` was given, and    15 s, refreshed
                                      `coordinator`
baton:coordinator:{instance}    hash  protocol, started_at (Unix s), endpoint  15 s, refreshed
baton:coordinators              set   instances that may have open requests    48 h, refreshed
baton:response:{key}:{id}       hash  a response that clients may name: what   BATON_RESPONSE_TTL
                                      it continues, its items, its body        after its last use
baton:responses                 zset  those responses and their bytes, by      with the responses
                                      when they expire
baton:responses:bytes           str   the bytes of all of them

A coordinator is alive while its hash exists. An instance listed in `baton:coordinators` without
a hash is dead: any live coordinator fails what its open set lists, then unlists it. A hash of
one's own that is missing means that the server lost its data: all that is known is written anew.
So does a list of one's own that is shorter than it must be.

A value of another type under one of these keys is another program's: the next script that needs
the key removes it, and Damage counts it. What cannot be read is left out of answers. A request
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
    """``owner`` is the name of an API key, "" where none are set: another key's response is under
    another name."""
    return f"{RESPONSE_PREFIX}{owner}:{response_id}"
