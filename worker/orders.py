"""Handles the coordinator's orders: requests and their cancellation, peers, spread groups.

An order only queues work: worker.py computes it. A later attempt of a request ends what is left
here of the attempt before. All requests end when the coordinator is lost.
"""

from collections.abc import Callable
from math import inf
from typing import assert_never

from engine.cache.allocator import CacheAllocator, too_long
from engine.sequence import Sequence, attempts_up_to
from prefill.offers import Offers
from transport.wire.layout import CacheLayout
from transport.wire.messages import (
    Cancel,
    Decode,
    DropPrefix,
    ExpectHandoff,
    Generate,
    PeerJoined,
    PeerLeft,
    Prefill,
    Release,
    Role,
)
from transport.wire.session import ORDERS, Session, Work
from transport.wire.spread import SpreadGroup
from worker.compilations import Compilations
from worker.decode_steps import DecodeSteps
from worker.handoff import Pulling
from worker.prefixes import Prefixes
from worker.reports import Reports
from worker.room import Room
from worker.spread.group import Alone, Group


class Orders:
    """Handles the orders of a worker of ``role``. ``stale_dropped`` counts orders about requests
    that are no longer here. The worker waits without sleep for an announced handoff, for at most
    ``awake_s``."""

    def __init__(
        self,
        session: Session,
        role: Role,
        layout: CacheLayout,
        allocator: CacheAllocator,
        room: Room,
        offers: Offers,
        pulling: Pulling,
        compilations: Compilations,
        prefixes: Prefixes,
        steps: DecodeSteps,
        group: Group,
        reports: Reports,
        clock: Callable[[], float],
        *,
        awake_s: float,
    ) -> None:
        self.stale_dropped = 0
        self._session = session
        self._role = role
        self._layout = layout
        self._allocator = allocator
        self._room = room
        self._offers = offers
        self._pulling = pulling
        self._compilations = compilations
        self._prefixes = prefixes
        self._steps = steps
        self._group = group
        self._reports = reports
        self._clock = clock
        self._awake_s, self._awake_until = awake_s, -inf

    @property
    def awake_s(self) -> float:
        """How long the loop waits without sleep, if it has nothing to compute."""
        return max(0.0, self._awake_until - self._clock())

    def handle(self, message: Work) -> None:
        orders = ORDERS[self._role]
        assert isinstance(message, orders), f"{self._role} was sent {type(message).__name__}"
        match message:
            case Prefill() | Decode() | Generate():
                self._accept(message)
            case ExpectHandoff():
                self._pulling.warm_up()
                self._awake_until = self._clock() + self._awake_s
            case Cancel(request_id=request_id, attempt=attempt):
                self.stale_dropped += not self._cancel(request_id, attempt)
            case Release(request_id=request_id, attempt=attempt, epoch=epoch):
                released = self._offers.release(request_id, attempt, epoch)
                self.stale_dropped += not released
            case PeerJoined(instance=instance, memory=memory):
                self._session.send(self._pulling.connect_peer(instance, memory))
            case PeerLeft(instance=instance):
                self._pulling.remove_peer(instance)
            case DropPrefix(prefix=prefix):
                self._room.prompts.drop(prefix)
            case SpreadGroup():
                self._join(message)
            case _:
                assert_never(message)

    def held(self) -> list[Sequence]:
        """Every sequence that has not ended here, including offered ones."""
        return [*self._room.active(), *self._offers.sequences()]

    def give_back(self) -> None:
        """Fail every request at the deadline of a drain, to be retried elsewhere."""
        for sequence in self.held():
            self._reports.failed(sequence, "draining", "the worker is shutting down")
        self.drop_all()

    def drop_all(self) -> None:
        """End every request without a report, because the coordinator is gone."""
        for sequence in self._room.active():
            self._room.end(sequence)
        self._offers.withdraw_all()
        if not isinstance(self._group, Alone):
            self._steps.settle()
        self._group.leave()
        self._pulling.transfers.drop_peers()
        self._prefixes.forget_published()

    def _accept(self, message: Prefill | Decode | Generate) -> None:
        sequence = Sequence.of(message, self._clock())
        self._cancel(sequence.request_id, sequence.attempt - 1)
        problem = too_long(sequence.num_tokens, self._layout, self._allocator.size)
        if problem:
            self._reports.failed(sequence, "too_long", problem, retry=False)
            return
        self._compilations.begin(sequence)
        self._prefixes.name(sequence)
        if isinstance(message, Decode):
            self._awake_until = -inf
            self._pulling.add(sequence, message.offer, self._session.in_socket_s)
        else:
            if sequence.keys is not None:
                sequence.keys.hash_all()  # now, instead of when all waiting prompts are compared
            self._room.prompts.add(sequence)

    def _cancel(self, request_id: str, attempt: int) -> bool:
        """End every attempt of the request up to ``attempt``; False if there was none."""
        found = attempts_up_to(self._room.active(), request_id, attempt)
        for sequence in found:
            self._room.end(sequence)
            self._reports.dropped(sequence)
        return self._offers.withdraw(request_id, attempt) or bool(found)

    def _join(self, group: SpreadGroup) -> None:
        self._steps.settle()
        joined = self._group.join(group)
        if joined is not None:
            self._session.send(joined)
