"""Prompts that wait for memory, in the order of acceptance, and the choice of the next. Pure.

A prompt is skipped while its grammar compiles, or while a running prompt is computing a prefix that
it can reuse (reuse.py).
"""

from bisect import insort
from collections.abc import Iterator

from engine.sequence import Sequence
from prefill.reuse import PrefixReuse


class WaitingPrompts:
    """The waiting prompts of one worker. ``filling`` are the prompts that have memory. A caller
    that changes that list, or lets one of those prompts advance, calls ``changed``."""

    def __init__(self, filling: list[Sequence], reuse: PrefixReuse | None) -> None:
        self._filling = filling
        self._reuse = reuse
        self._prompts: list[Sequence] = []
        self._next: Sequence | None = None
        self._has_compared = False

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._prompts)

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, sequence: Sequence) -> None:
        insort(self._prompts, sequence, key=lambda waiting: waiting.arrival)
        self.changed()

    def remove(self, sequence: Sequence) -> None:
        self._prompts.remove(sequence)
        self.changed()

    def changed(self) -> None:
        """Note that prompts being filled began, advanced or ended, or that a grammar compiled."""
        self._has_compared = False

    def next(self) -> Sequence | None:
        """The oldest prompt that waits for nothing but memory. Called several times per round, so
        prompts are compared only after a change."""
        if not self._has_compared:
            self._next, self._has_compared = self._compared(), True
        return self._next

    def _compared(self) -> Sequence | None:
        reuse, filling = self._reuse, self._filling
        compiled = (s for s in self._prompts if not s.compiling)
        if reuse is None or not filling:
            return next(compiled, None)
        return next((s for s in compiled if not reuse.waits(s, filling)), None)
