"""Kinds of places where states are kept, and how likely a prompt goes on there. Pure."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal

from transport.wire.prefix import PrefixKeys

Kind = Literal["end", "question", "boundary", "branch", "answer", "copied"]
"""``end``: near a prompt's end. ``question``: before its last tokens. ``boundary``: where its text
has one. ``branch``: an earlier prompt begins with it too. ``answer``: the end of one. ``copied``:
from another worker, which does not say where it was kept."""

MAX_COUNTED = 1000
"""Places of a class that are counted until both of its counts are halved, so that older ones count
less."""
MAX_PLACES = 1 << 16
"""Places that are remembered, in about 20 MB; four of a prompt at most, mostly."""
NUM_BEFORE = 10
"""How many counted places the odds of all places, or of a whole kind, are worth: those of a class
are near them until it has more."""
SHORTEST, LONGEST = 10, 15
"""Bits of the lengths that are told apart, from 1,023 to 16,384 tokens."""

_Class = tuple[Kind | int, ...]
"""All places, those of a kind, or those of a kind and a length in bits."""


class UseOdds:
    """How many of the places of each kind and length a later prompt went on from, by counts.

    Places are remembered when their prefixes are evicted, too. The odds of what is kept only would
    be those of the eviction: a kind that is evicted early has no uses, and would never have any.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[bytes, _Class] = OrderedDict()  # by the key of the whole pages
        self._num_kept: dict[_Class, float] = {}
        self._num_used: dict[_Class, float] = {}

    def note_kept(self, pages_key: bytes, kind: Kind, num_tokens: int) -> None:
        """A state is kept behind these whole pages, or within the page after them. A place stays of
        the kind that it was first, wherever its state comes from later."""
        if pages_key not in self._places:
            self._places[pages_key] = _class_of(kind, num_tokens)
            self._count_kept(self._places[pages_key])
            if len(self._places) > MAX_PLACES:
                self._places.popitem(last=False)

    def note_prompt(self, keys: PrefixKeys, max_tokens: int, page_size: int) -> None:
        """A prompt goes on from the longest place of at most ``max_tokens`` tokens that it has,
        whether that is kept still or not."""
        for key in reversed(keys.pages_up_to(max_tokens // page_size)[1:]):
            if key in self._places:
                self._places.move_to_end(key)
                used = self._places[key]
                for each in _with_wider(used):
                    self._num_used[each] = self._num_used.get(each, 0) + 1
                self._count_kept(used)  # it may be used again
                return

    def of(self, pages_key: bytes) -> float:
        """Of the place behind these whole pages: between 0 and 1, neither included."""
        odds = 0.5
        for each in _with_wider(self._places.get(pages_key, ())):
            num_kept, num_used = self._num_kept.get(each, 0), self._num_used.get(each, 0)
            odds = (min(num_used, num_kept) + NUM_BEFORE * odds) / (num_kept + NUM_BEFORE)
        return odds

    def _count_kept(self, kept: _Class) -> None:
        for each in _with_wider(kept):
            self._num_kept[each] = num_kept = self._num_kept.get(each, 0) + 1
            if num_kept > MAX_COUNTED:
                self._num_kept[each] /= 2
                self._num_used[each] = self._num_used.get(each, 0) / 2


def _class_of(kind: Kind, num_tokens: int) -> _Class:
    return kind, min(max(num_tokens.bit_length(), SHORTEST), LONGEST)


def _with_wider(narrow: _Class) -> Iterator[_Class]:
    """All places, those of its kind, and the class itself."""
    for num in range(len(narrow) + 1):
        yield narrow[:num]
