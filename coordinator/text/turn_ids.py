"""Caches the token ids of chat turns, so that a turn is encoded only once.

Each request of a conversation has all its earlier turns, and encoding takes 2 ms per thousand
tokens. A tokenizer finds its added tokens in a text first and encodes what lies between them by
itself, so a text may be cut where such a token begins. Texts are cut before the token with which
turns begin (turns.py), and the ids of long turns are kept.

The time to an answer reveals whether its turns were cached. So cached turns are shared only between
requests with the same salt, like prefixes in the workers (coordinator/http/cache_salt.py).
"""

import re
import sys
import threading
from collections import OrderedDict

import tokenizers

from coordinator.text.turns import CHATML
from transport.wire.token_ids import ID_BYTES, TokenIds, packed

_KEPT_LEN = 256  # characters: shorter turns are encoded as quickly as they are looked up
MAX_KEPT = 64 << 20
"""The most bytes of all cached turns and their ids, in each process that encodes."""
_LARGEST = 16
"""A turn that would take more than this part of MAX_KEPT is not cached: 1 / _LARGEST."""


class TurnIds:
    """Encodes texts without adding special tokens. ``start``: the token with which turns begin; ""
    if none is known. Safe to use from several threads."""

    def __init__(
        self, backend: tokenizers.Tokenizer, max_kept: int = MAX_KEPT, start: str = CHATML.start
    ) -> None:
        self._backend = backend
        self._max_kept = max_kept
        self._cut = re.compile(f"(?={re.escape(start)})") if _can_cut(backend, start) else None
        self._known: OrderedDict[tuple[str, str], TokenIds] = OrderedDict()
        self._num_kept = 0
        self._lock = threading.Lock()

    def encode(self, text: str, salt: str) -> TokenIds:
        """The ids of ``text``."""
        if self._cut is None:
            return self._encode([text])[0]
        turns = [turn for turn in self._cut.split(text) if turn]
        found = [self._find(salt, turn) for turn in turns]
        missing = [turn for turn, ids in zip(turns, found, strict=True) if ids is None]
        encoded = iter(self._encode(missing) if missing else ())
        whole = packed()
        for turn, known in zip(turns, found, strict=True):
            ids = next(encoded) if known is None else known
            whole.extend(ids)
            if known is None and len(turns) > 1 and len(turn) >= _KEPT_LEN:
                self._keep(salt, turn, ids)
        return whole

    def _encode(self, texts: list[str]) -> list[TokenIds]:
        # NOTE: encode() holds the GIL all along; the batch form releases it and skips offsets.
        batch = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [packed(encoding.ids) for encoding in batch]

    def _find(self, salt: str, turn: str) -> TokenIds | None:
        if len(turn) < _KEPT_LEN:
            return None
        with self._lock:
            if (ids := self._known.get((salt, turn))) is not None:
                self._known.move_to_end((salt, turn))
        return ids

    def _keep(self, salt: str, turn: str, ids: TokenIds) -> None:
        if (size := _size(turn, ids)) > self._max_kept // _LARGEST:
            return
        with self._lock:
            if (salt, turn) in self._known:
                return
            self._known[salt, turn] = ids
            self._num_kept += size
            while self._num_kept > self._max_kept:
                (_, oldest), its_ids = self._known.popitem(last=False)
                self._num_kept -= _size(oldest, its_ids)


def _size(turn: str, ids: TokenIds) -> int:
    return sys.getsizeof(turn) + len(ids) * ID_BYTES


def _can_cut(backend: tokenizers.Tokenizer, start: str) -> bool:
    """True if the tokenizer finds ``start`` anywhere in a text, whatever surrounds it."""
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    token = added.pop(start, None)
    if token is None or token.normalized or token.lstrip or token.rstrip or token.single_word:
        return False
    # Another added token could begin before it and end within or behind it.
    heads = [start[:length] for length in range(1, len(start))]
    return not any(start in other or other.endswith(tuple(heads)) for other in added)
