"""Records that Redis does not have yet, and records to write again if Redis loses its data.

Pure. Only the newest record of a request is kept, in one of three states:

    open        not ended
    unwritten   ended, Redis has not confirmed it
    retained    ended and confirmed; kept a while in case the server comes back empty

Every open request's record is kept: the coordinator limits how many there are. At most
``max_ended`` records of ended requests are kept: beyond that the oldest retained record is dropped
first, then the oldest unwritten one. ``dropped`` counts records that were dropped unwritten.
"""

from collections import OrderedDict
from collections.abc import Iterable

from coordinator.record.record import RequestRecord


class WriteBuffer:
    """The newest record of each request. Every operation is O(1) per record."""

    def __init__(self, *, max_ended: int, retain_s: float) -> None:
        self.max_ended, self.retain_s = max_ended, retain_s
        self.dropped = 0
        self._open: OrderedDict[str, RequestRecord] = OrderedDict()
        self._unwritten: OrderedDict[str, RequestRecord] = OrderedDict()
        self._retained: OrderedDict[str, tuple[RequestRecord, float]] = OrderedDict()
        self._dirty: OrderedDict[str, None] = OrderedDict()
        self._listed: set[str] = set()

    def __len__(self) -> int:
        return len(self._open) + len(self._unwritten) + len(self._retained)

    @property
    def num_dirty(self) -> int:
        return len(self._dirty)

    @property
    def num_listed(self) -> int:
        """The least number of requests that Redis must list as open while nothing is written."""
        return len(self._listed)

    def get(self, request_id: str) -> RequestRecord | None:
        """The newest record of a request, if it is still kept."""
        if (record := self._open.get(request_id) or self._unwritten.get(request_id)) is not None:
            return record
        retained = self._retained.get(request_id)
        return None if retained is None else retained[0]

    def put(self, record: RequestRecord) -> bool:
        """Keep ``record`` to be written, unless a record at least as new is known. Returns True if
        it is kept."""
        request_id = record.request_id
        known = self.get(request_id)
        if known is not None and record.order <= known.order:
            return False
        if record.ended:
            self._open.pop(request_id, None)
            self._retained.pop(request_id, None)
            self._unwritten[request_id] = record
        else:
            self._open[request_id] = record
        self._dirty[request_id] = None
        if len(self._unwritten) + len(self._retained) > self.max_ended:
            self._drop_oldest()
        return True

    def prioritize(self, request_id: str) -> bool:
        """Write this request's record next, if the request has ended and Redis has not confirmed
        it. Returns True if that is the case."""
        if request_id in self._dirty and request_id in self._unwritten:
            self._dirty.move_to_end(request_id, last=False)
        return request_id in self._unwritten

    def take(self, most: int) -> list[RequestRecord]:
        """Up to ``most`` records to write now; ``settle`` or ``give_back`` each of them."""
        taken: list[RequestRecord] = []
        while self._dirty and len(taken) < most:
            record = self.get(self._dirty.popitem(last=False)[0])
            assert record is not None, "a dirty record is always kept"
            taken.append(record)
        return taken

    def settle(self, record: RequestRecord, now: float, *, listed: bool = False) -> None:
        """Note that Redis has this record, or a newer one. ``listed``: Redis lists the request as
        open."""
        if listed:
            self._listed.add(record.request_id)
        else:
            self._listed.discard(record.request_id)
        if record.ended and self._unwritten.get(record.request_id) is record:
            del self._unwritten[record.request_id]
            self._retained[record.request_id] = (record, now)

    def give_back(self, records: Iterable[RequestRecord]) -> None:
        """Return records that could not be written; those that are still the newest are dirty
        again."""
        for record in records:
            newest = self.get(record.request_id)
            if record.ended:  # Redis may have written it, and its answer was lost
                self._listed.discard(record.request_id)
            if newest is record:
                self._dirty[record.request_id] = None
            self.dropped += newest is None

    def rewrite_all(self) -> None:
        """Mark every kept record as dirty, because Redis lost its data."""
        self._listed.clear()
        for place in (self._open, self._unwritten, self._retained):
            self._dirty.update(dict.fromkeys(place))

    def expire(self, now: float) -> None:
        """Drop the records that have been retained for ``retain_s``."""
        while self._retained:
            request_id, (_, settled_at) = next(iter(self._retained.items()))
            if now - settled_at < self.retain_s:
                return
            self._forget_retained(request_id)

    def _forget_retained(self, request_id: str) -> None:
        del self._retained[request_id]
        self._dirty.pop(request_id, None)

    def _drop_oldest(self) -> None:
        if self._retained:
            self._forget_retained(next(iter(self._retained)))
            return
        request_id, _ = self._unwritten.popitem(last=False)
        if request_id in self._dirty:
            del self._dirty[request_id]
            self.dropped += 1
