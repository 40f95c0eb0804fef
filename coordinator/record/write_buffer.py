"""The records that Redis does not have yet, and those to write again if it lost its data.

Pure. Of each request only the newest record is kept, in one of three places:

    open        not ended
    unwritten   ended, Redis has not confirmed it
    retained    ended and confirmed; kept a while in case the server comes back empty

All open ones are kept, as many as the coordinator accepts. Of those that have ended at most
``max_ended`` are: over it, the oldest retained one goes first, then the oldest unwritten. What
was never written for that reason is counted in ``dropped``.
"""

from collections import OrderedDict
from collections.abc import Iterable

from coordinator.record.record import RequestRecord


class WriteBuffer:
    """Every operation is O(1) a record."""

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
        """How many requests Redis must list as open, at least, while nothing is being written."""
        return len(self._listed)

    def get(self, request_id: str) -> RequestRecord | None:
        """The newest record that is still kept."""
        if (record := self._open.get(request_id) or self._unwritten.get(request_id)) is not None:
            return record
        retained = self._retained.get(request_id)
        return None if retained is None else retained[0]

    def put(self, record: RequestRecord) -> bool:
        """Keep ``record`` to be written, unless one at least as new is known."""
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

    def hasten(self, request_id: str) -> bool:
        """Take this one next, if it has ended and Redis has not confirmed it; whether that is
        so."""
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
        """Redis has this record, or a newer one. ``listed``: it lists the request as open."""
        if listed:
            self._listed.add(record.request_id)
        else:
            self._listed.discard(record.request_id)
        if record.ended and self._unwritten.get(record.request_id) is record:
            del self._unwritten[record.request_id]
            self._retained[record.request_id] = (record, now)

    def give_back(self, records: Iterable[RequestRecord]) -> None:
        """These could not be written; what is still the newest is dirty again."""
        for record in records:
            newest = self.get(record.request_id)
            if record.ended:  # it may have been written, and its answer lost
                self._listed.discard(record.request_id)
            if newest is record:
                self._dirty[record.request_id] = None
            self.dropped += newest is None

    def rewrite_all(self) -> None:
        """Redis lost its data: everything that is kept is dirty."""
        self._listed.clear()
        for place in (self._open, self._unwritten, self._retained):
            self._dirty.update(dict.fromkeys(place))

    def expire(self, now: float) -> None:
        """Forget what has been retained for ``retain_s``."""
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
