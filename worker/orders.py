"""Receives the coordinator's orders: requests and their cancellation, peers, spread groups.

An order only queues work: worker.py computes it. A later attempt of a request ends what is left
here of the attempt before. All requests end when the coordinator is lost.
"""

from math import inf
from typing import assert_never

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
)
from transport.wire.session import LOST, Lost, Session, Work
from transport.wire.spread import SpreadGroup
from worker.decode_steps import DecodeSteps
from worker.handoff import Handoffs
from worker.intake import Intake
from worker.room import Room


class Orders:
    """The orders that ``session`` brings. ``stale_dropped`` counts orders about requests that are
    no longer here."""

    def __init__(
        self, session: Session, room: Room, intake: Intake, handoffs: Handoffs, steps: DecodeSteps
    ) -> None:
        self.stale_dropped = 0
        self._session = session
        self._room = room
        self._intake = intake
        self._handoffs = handoffs
        self._steps = steps
        self._awake_until = -inf

    @property
    def awake_s(self) -> float:
        """How long the worker waits without sleep, because a handoff was announced."""
        return max(0.0, self._awake_until - self._room.clock())

    def receive(self, timeout_s: float) -> None:
        """Handle the orders that have come, or wait for some at most ``timeout_s``."""
        for message in self._session.receive(timeout_s, awake_s=self.awake_s):
            self.handle(message)

    def handle(self, message: Work | Lost) -> None:
        """Handle one order, or the loss of the coordinator."""
        if message == LOST:
            self._drop_all()
            return
        self._steps.interrupt_trials()
        self._carry_out(message)

    def _carry_out(self, message: Work) -> None:
        expected, room = self._room.settings.capabilities.orders, self._room
        assert isinstance(message, expected), f"no order for this worker: {type(message).__name__}"
        match message:
            case Prefill() | Generate():
                self._intake.accept_prompt(message)
            case Decode():
                self._awake_until = -inf
                self._intake.accept_handoff(message, self._session.in_socket_s)
            case ExpectHandoff():
                self._handoffs.warm_up()
                self._awake_until = room.clock() + room.settings.awake_s
            case Cancel(request_id=request_id, attempt=attempt):
                self.stale_dropped += not room.cancel(request_id, attempt)
            case Release(request_id=request_id, attempt=attempt, epoch=epoch):
                self.stale_dropped += not room.offers.release(request_id, attempt, epoch)
            case PeerJoined(instance=instance, memory=memory):
                self._session.send(self._handoffs.connect_peer(instance, memory))
            case PeerLeft(instance=instance):
                self._handoffs.remove_peer(instance)
            case DropPrefix(prefix=prefix):
                room.prompts.drop(prefix)
            case SpreadGroup():
                joined = self._steps.join_group(message)
                if joined is not None:
                    self._session.send(joined)
            case _:
                assert_never(message)

    def give_back(self) -> None:
        """Fail every request at the deadline of a drain, to be retried elsewhere."""
        for sequence in self._room.held():
            self._room.reports.failed(sequence, "draining", "the worker is shutting down")
        self._drop_all()

    def _drop_all(self) -> None:
        """End every request without a report, because the coordinator is gone."""
        self._room.end_all()
        self._steps.leave_group()
        self._room.transfers.drop_peers()
        self._room.prefixes.forget_published()
