"""Messages about spread groups: workers of one node that compute their decode steps together.

    worker ── Hello(spread) ──► coordinator ── SpreadGroup(generation 1) ──► every member
    every member: opens the others' memory ── SpreadJoined ──► coordinator

A group whose members change gets a new generation. No message is sent about a step: its members
agree through the records (worker/spread/).
"""

from typing import Annotated, Literal

from msgspec import Meta

from transport.wire.fields import Count, Positive, WireStruct
from transport.wire.memory_export import MemoryKind

Generation = Annotated[int, Meta(ge=1, lt=2**32)]
MAX_MEMBERS = 8
MAX_ROWS = 256
"""The most tokens of one member in a spread step."""


class ExchangeExport(WireStruct, frozen=True):
    """The memory into which a worker's peers write rows and results; ``handle`` as in
    ``MemoryExport``."""

    kind: MemoryKind
    handle: str
    size_bytes: Positive


class SpreadExport(WireStruct, frozen=True):
    """The memory that peers of a spread group open. ``record``: the shared-memory segment of the
    worker's record. The worker takes part only in steps with at most ``max_drafts`` drafts per
    sequence."""

    record: str
    exchange: ExchangeExport
    max_drafts: Count = 0


class SpreadMember(WireStruct, frozen=True):
    """One member of a group."""

    instance: str
    spread: SpreadExport


class SpreadGroup(WireStruct, frozen=True, tag="spread-group"):
    """The worker is a member of this group only. Without ``members`` it is in no group, and the
    group of this ``generation`` continues without it. All members have the same order of members;
    the last ``num_lenders`` decode no sequences, and lend their bandwidth while they have no
    prompts. Generations are unique, also across coordinators."""

    generation: Generation
    members: Annotated[tuple[SpreadMember, ...], Meta(max_length=MAX_MEMBERS)] = ()
    num_lenders: Count = 0


class SpreadJoined(WireStruct, frozen=True, tag="spread-joined"):
    """The worker has opened the memory of all other members, or could not open ``peer``'s because
    of ``problem``."""

    generation: Generation
    peer: str = ""
    problem: str = ""


MAX_NAMED = 64
ByWorker = Annotated[tuple[tuple[str, Count], ...], Meta(max_length=MAX_NAMED)]


TableSource = Literal["", "shipped", "estimated", "measured here", "file"]
"""Where a worker has its times of steps from, by which it decides when to spread them. "shipped":
this version of Baton, measured; "estimated": this version, not measured with so many members;
"measured here": idle groups of this node; "file": BATON_SPREAD_TABLE; "": it has no group."""


class SpreadCounts(WireStruct, frozen=True):
    """Counts of a worker that may be in spread groups, since it started.

    ``num_steps`` decode steps were computed together with others in ``spread_ms``, and
    ``num_local`` steps alone in ``local_ms``. ``num_aborted``: how often launched steps were taken
    back. ``wait_ms``: how long its host waited for the others; ``waits_ms``: for each member;
    ``late``: how often it waited for each in vain. ``within_us``: how long its device waited for
    each within spread steps. ``saved_us``: how much longer the steps would have taken with one
    member less, by its ``table``. ``num_members``: size of its group now, 0 without one."""

    num_members: Count = 0
    num_steps: Count = 0
    num_aborted: Count = 0
    wait_ms: Count = 0
    late: ByWorker = ()
    num_local: Count = 0
    spread_ms: Count = 0
    local_ms: Count = 0
    waits_ms: ByWorker = ()
    within_us: ByWorker = ()
    saved_us: Count = 0
    table: TableSource = ""
