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
baton:lease:gpu:{uuid}          hash  `share`, how many workers may hold it,   15 s, refreshed
                                      and for each holder's instance when its
                                      hold ends (Unix ms of the server)
baton:unfit:gpu:{uuid}          str   why no worker gets that GPU (leases.py)  1 h, a setting
baton:unfit-made:{coordinator}  str   which of that coordinator's marks on a   with the mark
    :{uuid}                           GPU was made last: a server that knows
                                      it has not lost the mark, if it is gone

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
COORDINATOR_PREFIX: Final = "baton:coordinator:"
COORDINATORS: Final = "baton:coordinators"
RECENT: Final = "baton:recent"

OPEN_TTL_S: Final = 24 * 3600
ENDED_TTL_S: Final = 3600
PRESENCE_TTL_S: Final = 15.0
COORDINATORS_TTL_S: Final = 48 * 3600
RECENT_TTL_S: Final = 24 * 3600
RECENT_MAX: Final = 1000
UNFIT_GPU_TTL_S: Final = 3600.0
UNFIT_GPU_PREFIX: Final = "baton:unfit:gpu:"


def request(request_id: str) -> str:
    return REQUEST_PREFIX + request_id


def open_requests(coordinator: str) -> str:
    return "baton:open:" + coordinator


def worker(instance: str) -> str:
    return "baton:worker:" + instance


def lease(gpu: str) -> str:
    return "baton:lease:gpu:" + gpu


def unfit(gpu: str) -> str:
    return UNFIT_GPU_PREFIX + gpu


def unfit_made(coordinator: str, gpu: str) -> str:
    return f"baton:unfit-made:{coordinator}:{gpu}"


def coordinator(instance: str) -> str:
    return COORDINATOR_PREFIX + instance
