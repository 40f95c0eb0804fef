"""The other members of a spread group, as one of them has them open."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from decode.spread_record import Record
from engine.spread.interface import MemberUnreachable
from engine.spread.shapes import Shapes
from transport.wire.errors import PeerGone
from transport.wire.spread import ExchangeExport, SpreadExport, SpreadGroup, SpreadJoined
from worker.spread.records import OwnRecord, PeerRecord

log = logging.getLogger(__name__)


class Joins(Protocol):
    """The part of an engine that opens the others' memory (engine/spread/interface.py)."""

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None: ...

    def leave(self) -> None: ...


class Exports(Protocol):
    """The part of an engine that others open, and what it can launch with them."""

    @property
    def export(self) -> ExchangeExport: ...

    @property
    def shapes(self) -> Shapes: ...


def spread_export(own: OwnRecord, engine: Exports) -> SpreadExport:
    """What peers open."""
    max_drafts = max(shape.num_drafts for shape in engine.shapes)
    return SpreadExport(own.handle, engine.export, max_drafts)


class Peers:
    """``decoding`` and ``lenders`` are the names and records of the others; ``members`` the names
    of all in the order of their ranks, none while no group is joined."""

    def __init__(
        self, engine: Joins, instance: str, open_peer: Callable[[str], PeerRecord]
    ) -> None:
        self._engine, self._instance, self._open_peer = engine, instance, open_peer
        self.members: tuple[str, ...] = ()
        self.decoding: list[tuple[str, PeerRecord]] = []
        self.lenders: list[tuple[str, PeerRecord]] = []

    def join(self, group: SpreadGroup) -> SpreadJoined | None:
        """Open what the members of a group export, while none is open. Returns the answer to the
        coordinator, None where this worker is not among them."""
        members = tuple(member.instance for member in group.members)
        if self._instance not in members:
            return None
        num_decoding = len(members) - group.num_lenders
        try:
            for rank, member in enumerate(group.members):
                if member.instance != self._instance:
                    peer = member.instance
                    opened = self.decoding if rank < num_decoding else self.lenders
                    opened.append((peer, self._open_peer(member.spread.record)))
            exports = [member.spread.exchange for member in group.members]
            rank = members.index(self._instance)
            self._engine.join(group.generation, rank, exports, group.num_lenders)
        except PeerGone as error:
            self._close()
            if isinstance(error, MemberUnreachable):
                peer = members[error.rank]
            log.error("cannot compute steps together with %s: %s", peer, error)
            return SpreadJoined(group.generation, peer, str(error))
        self.members = members
        log.info("member %d of %d of spread group %d", rank, len(members), group.generation)
        return SpreadJoined(group.generation)

    def leave(self) -> None:
        """Close all, while no step is under way."""
        if self.members:
            self.members = ()
            self._engine.leave()
        self._close()

    def _close(self) -> None:
        for _, record in [*self.decoding, *self.lenders]:
            record.close()
        self.decoding, self.lenders = [], []


def read_all(peers: Sequence[tuple[str, PeerRecord]]) -> list[Record | None]:
    """None: unreadable."""
    return [record.read() for _, record in peers]
