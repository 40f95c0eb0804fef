"""Prompts that wait for memory, in the order of acceptance, and which of them is next. Pure.

Passed over is a prompt whose grammar is still being compiled, and one that shares much with a
prompt that is being filled: it waits for what that one will keep (reuse.py).
"""

from bisect import insort
from collections.abc import Iterator

from engine.sequence import Sequence
from prefill.reuse import PrefixReuse


class WaitingPrompts:
    """The waiting prompts of one worker. ``filling`` are those that have memory; whoever changes
    that, or lets one of them advance, calls ``changed``."""

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
        """Prompts that are filled have begun, advanced or ended, or a grammar is compiled."""
        self._has_compared = False

    def next(self) -> Sequence | None:
        """The oldest that waits for memory only. Asked several times a round: prompts are compared
        after a change."""
        if not self._has_compared:
            self._next, self._has_compared = self._compared(), True
        return self._next

    def _compared(self) -> Sequence | None:
        reuse, filling = self._reuse, self._filling
        compiled = (s for s in self._prompts if not s.compiling)
        if reuse is None or not filling:
            return next(compiled, None)
        return next((s for s in compiled if not reuse.waits(s, filling)), None)
