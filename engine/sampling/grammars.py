"""Compiles grammars for a tokenizer into llguidance's matchers, each once, in a thread of its own.

A grammar is text as ``llguidance.LLMatcher.grammar_from_*`` makes it. The coordinator has compiled
it before, within the same limits, so a failure here is a bug, or another version of the library.
"""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from llguidance import LLMatcher

from transport.checkpoint_folder import TOKENIZER
from transport.eos_ids import eos_ids
from transport.grammars import compiled, grammar_tokenizer

MAX_KEPT = 64

Compiled = Future[LLMatcher]
"""A grammar that is compiled or being compiled."""


def grammars_of(folder: Path, num_ids: int) -> "Grammars | None":
    """The grammars of a checkpoint folder's tokenizer; None if it has none. Takes seconds for a
    vocabulary of 250,000 ids."""
    if not (folder / TOKENIZER).is_file():
        return None
    return Grammars(folder, num_ids, eos_ids(folder))


class Grammars:
    """Compiles grammars for the tokenizer of ``folder``, whose ids are below ``num_ids``.

    ``eos_ids``: the ids that a matcher allows once its grammar may end. Thread-safe.
    """

    def __init__(self, folder: Path, num_ids: int, eos_ids: Sequence[int]) -> None:
        self.eos_ids = tuple(eos_ids)
        self.tokenizer = grammar_tokenizer(folder, num_ids, eos_ids)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="grammar")
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._lock = Lock()

    def compile(self, grammar: str) -> Compiled:
        """A matcher at the grammar's start, to be copied. Its ``get_error`` says what is wrong."""
        with self._lock:
            found = self._kept.get(grammar)
            if found is None:
                found = self._kept[grammar] = self._pool.submit(compiled, grammar, self.tokenizer)
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(grammar)
            return found
