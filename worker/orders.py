"""Receives the coordinator's orders, and brings the requests that they have to the schedulers.

An order only queues work: worker.py computes it. A later attempt of a request ends what is left
here of the attempt before. All requests end when the coordinator is lost. A request waits between
its order and its first batch:

accept   An order has come: its grammar begins to compile, and its prompt gets the keys by which
         kept prefixes are found. Then it waits in the queue of prompts or of transfers.
admit    Once a round: sequences whose grammar is compiled, or whose cache has arrived, are given
         to the schedulers.
"""

from math import inf
from typing import assert_never

from engine.cache.allocator import too_long
from engine.sequence import Sequence
from transport.wire.messages import (
    Cancel,
    Decode,
    DropPrefix,
    ExpectHandoff,
    Generate,
    Move,
    PeerJoined,
    PeerLeft,
    Prefill,
    Release,
)
from transport.wire.session import LOST, Lost, Session, Work
from transport.wire.spread import SpreadGroup
from worker.compilations import Compilations
from worker.decode_steps import DecodeSteps
from worker.handoff import Handoffs
from worker.room import Room


class Orders:
    """The orders that ``session`` brings: requests and their cancellation, peers, spread groups.
    ``stale_dropped`` counts orders about requests that are no longer here."""

    def __init__(
        self, session: Session, room: Room, intake: "Intake", handoffs: Handoffs, steps: DecodeSteps
    ) -> None:
        self.stale_dropped = 0
        self._session = session
        self._room = room
        self._intake = intake
        self._handoffs = handoffs
        self._steps = steps
        self._awake_until = -inf
        self._num_announced = 0
        """Handoffs that were announced while the worker is awake, and have not come."""

    @property
    def awake_s(self) -> float:
        """How long the worker waits without sleep, because handoffs were announced."""
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
                self._has_come()
                self._intake.accept_handoff(message, self._session.in_socket_s)
            case ExpectHandoff():
                self._handoffs.warm_up()
                self._num_announced = 1 + (self._num_announced if self.awake_s else 0)
                self._awake_until = room.clock() + room.settings.awake_s
            case Move(request_id=request_id, attempt=attempt):
                self.stale_dropped += not room.move(request_id, attempt)
            case Cancel(request_id=request_id, attempt=attempt):
                self.stale_dropped += not room.cancel(request_id, attempt)
            case Release(request_id=request_id, attempt=attempt, epoch=epoch):
                self.stale_dropped += not room.offers.release(request_id, attempt, epoch)
            case PeerJoined(instance=instance, memory=memory, hands_off=hands_off):
                tested = self._handoffs.connect_peer(instance, memory, hands_off=hands_off)
                self._session.send(tested)
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

    def _has_come(self) -> None:
        """Sleep again once every handoff that was announced has come."""
        self._num_announced -= 1
        if self._num_announced <= 0:
            self._awake_until = -inf

    def fail_all(self) -> None:
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


class Intake:
    """Brings requests into ``room``, until its schedulers can compute them. A grammar that has been
    compiled wakes ``session``."""

    def __init__(self, room: Room, session: Session, handoffs: Handoffs) -> None:
        self._room = room
        self._compilations = Compilations(room, session)
        self._handoffs = handoffs

    def accept_prompt(self, order: Prefill | Generate) -> None:
        """Queue a prompt that is to be computed here."""
        sequence = self._prepare(order)
        if sequence is None:
            return
        if sequence.keys is not None:
            sequence.keys.hash_all()  # now, instead of when all waiting prompts are compared
        self._room.prompts.add(sequence)

    def accept_handoff(self, order: Decode, in_socket_s: float) -> None:
        """Queue a sequence whose cache is to be pulled. Its order was in the socket for at most
        ``in_socket_s``."""
        sequence = self._prepare(order)
        if sequence is not None:
            self._handoffs.add(sequence, order.offer, in_socket_s)

    def admit(self) -> None:
        """Give the schedulers the sequences that have waited long enough."""
        self._room.prefixes.host.poll()
        self._compilations.resume_compiled()
        for sequence in self._handoffs.arrived():
            self._room.sequences.add(sequence)

    def close(self) -> None:
        """Wait for the copies of handoffs, and let grammars wake nothing any more."""
        self._compilations.close()
        self._handoffs.close()

    def _prepare(self, order: Prefill | Decode | Generate) -> Sequence | None:
        """The order's sequence, whose grammar compiles from now on; None if it is too long. Earlier
        attempts of the request end."""
        room = self._room
        sequence = Sequence.of(order, room.clock())
        room.cancel(sequence.request_id, sequence.attempt - 1)
        problem = too_long(sequence.num_tokens, room.engine.layout, room.allocator.size)
        if problem:
            room.reports.failed(sequence, "too_long", problem, retry=False)
            return None
        self._compilations.begin(sequence)
        room.prefixes.give_keys(sequence)
        return sequence
