"""Grammars that are being compiled, and the sequences that wait for them.

1. ``begin``: an order has come, and a thread compiles its grammar (engine/sampling/grammars.py).
2. Until then its sequence is ``compiling``. A prompt waits without memory, and a sequence whose
   cache has come from a peer keeps it; the schedulers skip both, and all other sequences go on.
3. The thread wakes the worker's loop, and ``resume_compiled`` lets the sequence go on. A sequence
   whose grammar takes too long fails alone.
"""

from dataclasses import dataclass
from threading import Lock

from engine.sampling.constraints import COMPILE_S, NOT_COMPILED
from engine.sampling.grammars import Compiled
from engine.sequence import Sequence
from transport.wire.session import Session
from worker.room import Room


@dataclass(eq=False)
class _Waiting:
    """A sequence that waits for its grammar. ``begun``: a thread has started to compile it. Its
    time counts from ``since``: the arrival of the sequence, or, if that is later, the last time
    that a thread started with this grammar or an earlier one."""

    sequence: Sequence
    compiled: Compiled
    since: float
    begun: bool


class Compilations:
    """Compiles grammars in threads. A compilation fails after ``COMPILE_S`` seconds; a queued one
    fails if no thread became free for that long. Threads wake ``session`` until ``close``."""

    def __init__(self, room: Room, session: Session) -> None:
        self._room = room
        self._session = session
        self._waiting: list[_Waiting] = []
        self._lock = Lock()
        self._closed = False

    def begin(self, sequence: Sequence) -> None:
        """Start to compile the grammar of a new sequence, which must be neither bound nor computed
        while it is ``compiling``."""
        compiled = sequence.compiled = self._room.engine.prepare(sequence.sampling)
        if compiled is None or compiled.done():
            return
        sequence.compiling = True
        # A grammar that already compiles for an earlier sequence brings no other one's turn nearer.
        begun = compiled.running()
        self._waiting.append(_Waiting(sequence, compiled, self._room.clock(), begun))
        compiled.add_done_callback(self._wake)

    def resume_compiled(self) -> None:
        """Resume the sequences whose grammars are compiled, and fail those that took too long."""
        if not self._waiting:
            return
        now = self._room.clock()
        self._note_begun(now)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.sequence.ended:
                continue
            if each.compiled.done():
                each.sequence.compiling = False
                self._room.prompts.compiled()
            elif now - each.since >= COMPILE_S:
                self._give_up(each.sequence)
            else:
                self._waiting.append(each)

    def close(self) -> None:
        """Stop waking the session."""
        with self._lock:
            self._closed = True

    def _note_begun(self, now: float) -> None:
        in_line = [each for each in self._waiting if not each.begun]
        begun = [each for each in in_line if each.compiled.running() or each.compiled.done()]
        if begun:
            for each in in_line:
                each.since = now
        for each in begun:
            each.begun = True

    def _give_up(self, sequence: Sequence) -> None:
        if sequence in self._room.active():  # otherwise it has failed already
            self._room.end(sequence)
            self._room.reports.sampling_failed(sequence, NOT_COMPILED)

    def _wake(self, compiled: Compiled) -> None:
        with self._lock:
            if not self._closed:
                self._session.wake()
