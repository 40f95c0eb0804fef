"""Messages about spread groups: workers of one node that compute their decode steps together.

    worker ── Hello(spread) ──► coordinator ── SpreadGroup(generation 1) ──► every member
    every member: opens the others' memory ── SpreadJoined ──► coordinator

A group whose members change gets a new generation. No message is sent about a step: its members
agree through the records (worker/spread/).
"""

from typing import Annotated

from msgspec import Meta

from transport.wire.fields import Count, Positive, WireStruct
from transport.wire.memory_export import MemoryKind

Generation = Annotated[int, Meta(ge=1, lt=2**32)]
MAX_MEMBERS = 8
MAX_ROWS = 256
"""Most tokens that one member brings to a spread step."""


class ExchangeExport(WireStruct, frozen=True):
    """The memory into which a worker's peers write rows and results; ``handle`` as in
    ``MemoryExport``."""

    kind: MemoryKind
    handle: str
    size_bytes: Positive


class SpreadExport(WireStruct, frozen=True):
    """What peers of a spread group open: ``record`` is the shared-memory segment of the worker's
    record; a step that it takes part in has at most ``max_drafts`` drafts of a sequence."""

    record: str
    exchange: ExchangeExport
    max_drafts: Count = 0


class SpreadMember(WireStruct, frozen=True):
    """One member of a group."""

    instance: str
    spread: SpreadExport


class SpreadGroup(WireStruct, frozen=True, tag="spread-group"):
    """The worker is a member of this group, and of no other one; without ``members`` of none, and
    that of this ``generation`` goes on without it. The order of the members is the same for all of
    them; the last ``num_lenders`` decode no sequences, and lend their bandwidth while they have no
    prompts. No two groups ever have the same generation, whatever coordinator has formed them."""

    generation: Generation
    members: Annotated[tuple[SpreadMember, ...], Meta(max_length=MAX_MEMBERS)] = ()
    num_lenders: Count = 0


class SpreadJoined(WireStruct, frozen=True, tag="spread-joined"):
    """The worker has opened the memory of all other members; or not that of ``peer``, because of
    ``problem``."""

    generation: Generation
    peer: str = ""
    problem: str = ""


MAX_NAMED = 64
ByWorker = Annotated[tuple[tuple[str, Count], ...], Meta(max_length=MAX_NAMED)]


class SpreadCounts(WireStruct, frozen=True):
    """What a worker that may be in spread groups has done since it started. ``num_steps`` decode
    steps were computed together with others in ``spread_ms``, and ``num_local`` alone in
    ``local_ms``; ``num_aborted`` times it took launched steps back. Its host waited ``wait_ms`` for
    the others, ``waits_ms`` for each, and as often as ``late`` says in vain. Within spread steps
    its device waited ``within_us`` for each; with one member less they would have taken
    ``saved_us`` longer, by its table. It now has ``num_members`` in its group, 0 without one."""

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
