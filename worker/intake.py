"""What happens to a request between its order and its first batch.

accept   An order has come: its grammar begins to compile, and its prompt gets the keys by which
         kept prefixes are found. Then it waits in the queue of prompts or of transfers.
admit    Once a round: sequences whose grammar is compiled, or whose cache has arrived, are given
         to the schedulers.
"""

from engine.cache.allocator import too_long
from engine.sequence import Sequence
from transport.wire.messages import Decode, Generate, Prefill
from transport.wire.session import Session
from worker.compilations import Compilations
from worker.handoff import Handoffs
from worker.room import Room


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
        room.prefixes.name(sequence)
        return sequence
