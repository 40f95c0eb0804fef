"""Grammars that are being compiled, and the sequences that wait for them.

1. ``begin``: an order has come, and a thread compiles its grammar (engine/grammars.py).
2. Until that is done its sequence is ``compiling``. A prompt waits without memory, a sequence whose
   cache has come from a peer keeps it; the schedulers pass both over, and all others go on.
3. The thread wakes the worker's loop, and ``take_in`` lets the sequence go on. One whose grammar
   takes too long fails alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from engine.constraints import COMPILE_S, NOT_COMPILED
from engine.grammars import Compiled
from engine.runner import Engine
from engine.sequence import Sequence
from transport.wire.session import Session
from worker.reports import Reports
from worker.room import Room


@dataclass(eq=False)
class _Waiting:
    """``begun``: a thread has taken the grammar up. Its time counts from ``since``: when the
    sequence came, or, if that is later, when a thread last took up its grammar or one before."""

    sequence: Sequence
    compiled: Compiled
    since: float
    begun: bool


class Compilations:
    """A grammar may take ``COMPILE_S`` from when a thread takes it up; one in line fails when no
    thread has taken up any for as long. Threads wake ``session`` until ``close``."""

    def __init__(
        self,
        engine: Engine,
        room: Room,
        reports: Reports,
        session: Session,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._room = room
        self._reports = reports
        self._session = session
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._lock = Lock()
        self._closed = False

    def begin(self, sequence: Sequence) -> None:
        """A sequence has come; nothing may be bound or computed of it while it is ``compiling``."""
        compiled = sequence.compiled = self._engine.prepare(sequence.sampling)
        if compiled is None or compiled.done():
            return
        sequence.compiling = True
        # What a thread has taken up for an earlier sequence brings no other one's turn nearer.
        begun = compiled.running()
        self._waiting.append(_Waiting(sequence, compiled, self._clock(), begun))
        compiled.add_done_callback(self._wake)

    def take_in(self) -> None:
        """Let the sequences go on whose grammars are compiled now, and fail those that are late."""
        if not self._waiting:
            return
        now = self._clock()
        self._note_begun(now)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.sequence.ended:
                continue
            if each.compiled.done():
                self._let_go(each.sequence)
            elif now - each.since >= COMPILE_S:
                self._give_up(each.sequence)
            else:
                self._waiting.append(each)

    def close(self) -> None:
        """The session is woken no more."""
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

    def _let_go(self, sequence: Sequence) -> None:
        sequence.compiling = False
        self._room.prompts.compiled()
        if sequence in self._room.sequences.running:
            self._engine.bind(sequence.binding())

    def _give_up(self, sequence: Sequence) -> None:
        if sequence in self._room.active():  # else it has failed already
            self._room.end(sequence)
            self._reports.no_token(sequence, NOT_COMPILED)

    def _wake(self, compiled: Compiled) -> None:
        with self._lock:
            if not self._closed:
                self._session.wake()
