"""Kinds of places where states are kept, and the odds that a later prompt continues there. Pure."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from transport.wire.prefix import PrefixKeys

Kind = Literal["end", "question", "boundary", "branch", "answer", "copied"]
"""The kind of a place. ``end``: near a prompt's end. ``question``: before its last tokens.
``boundary``: at a boundary of its text. ``branch``: an earlier prompt begins with it too.
``answer``: the end of an answer. ``copied``: from another worker, which does not name the kind."""

MAX_COUNTED = 1000
"""After this many counted places, both counts of a class are halved, so that older places count
less."""
MAX_PLACES = 1 << 16
"""The most remembered places, in about 20 MB; a prompt mostly has at most four."""
NUM_BEFORE = 10
"""How many counted places the odds of the wider class weigh: until a class has more places than
this, its odds are near those of the wider class."""
SHORTEST, LONGEST = 9, 15
"""Numbers of new tokens are distinguished by their number of bits, from 511 to 16,384 tokens."""

_Class = tuple[Kind | int | bool, ...]
"""A class of places: all places, the places of a kind, and ever narrower classes."""


@dataclass(slots=True)
class _Place:
    """A place where a state was kept. ``start``: number of its tokens that an earlier prompt began
    with. ``later_turn``: its prompt continued from a place that only one other prompt had continued
    from. ``num_uses``: prompts that continued from it. ``passed``: a prompt has a longer place
    behind it, where the next prompt probably continues instead. ``reopened``: it was counted again
    after its last use, in its present class."""

    kind: Kind
    num_tokens: int
    start: int
    later_turn: bool
    num_uses: int = 0
    passed: bool = False
    reopened: bool = False

    @property
    def class_(self) -> _Class:
        num_bits = (self.num_tokens - self.start).bit_length()
        uses = 2 * min(self.num_uses, 2) + self.passed
        return self.kind, uses, self.later_turn, min(max(num_bits, SHORTEST), LONGEST)


_NOTHING = _Place("end", 0, 0, later_turn=False)


class UseOdds:
    """Counts for each class how many of its places a later prompt continued from.

    A class is given by the kind, how often prompts continued from the place, whether one has passed
    it, whether its prompt was a later turn, and how many tokens were new in it. After each use a
    place is counted again, since it may be used again.

    Places are remembered even when their prefixes are evicted. Otherwise the eviction policy would
    determine the odds: a kind that is evicted early would have no uses, and would never get any.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[bytes, _Place] = OrderedDict()  # by the key of the whole pages
        self._num_kept: dict[_Class, float] = {}
        self._num_used: dict[_Class, float] = {}

    def note_kept(self, page_keys: Sequence[bytes], kind: Kind, num_tokens: int) -> None:
        """Note that a state is kept behind the whole pages with these keys (of the first 0, 1, ...
        pages), or within the page after them. A place keeps its first kind, wherever its state
        comes from later."""
        if page_keys[-1] in self._places:
            return
        keys = reversed(page_keys[1:-1])
        shorter = [place for key in keys if (place := self._places.get(key)) is not None]
        last = shorter[0] if shorter else _NOTHING
        start = last.num_tokens if last.num_uses else last.start  # an unused place is this prompt's
        later_turn = last.later_turn or last.num_uses == 1
        self._places[page_keys[-1]] = place = _Place(kind, num_tokens, start, later_turn)
        self._count_kept(place)
        if len(self._places) > MAX_PLACES:
            self._places.popitem(last=False)
        for each in shorter if kind != "answer" else ():
            if each.passed:
                break
            self._pass(each)

    def note_prompt(self, keys: PrefixKeys, max_tokens: int, page_size: int) -> None:
        """Count a use of the longest place, of at most ``max_tokens`` tokens, that a prompt could
        continue from, whether its state is still kept or not."""
        for key in reversed(keys.pages_up_to(max_tokens // page_size)[1:]):
            place = self._places.get(key)
            if place is not None:
                self._places.move_to_end(key)
                for each in _with_wider(place.class_):
                    self._num_used[each] = self._num_used.get(each, 0) + 1
                place.num_uses += 1
                place.reopened = True
                self._count_kept(place)
                return

    def of(self, pages_key: bytes) -> float:
        """The odds of a use of the place behind these whole pages: above 0 and below 1."""
        odds, place = 0.5, self._places.get(pages_key)
        for each in _with_wider(place.class_ if place is not None else ()):
            num_kept, num_used = self._num_kept.get(each, 0), self._num_used.get(each, 0)
            odds = (min(num_used, num_kept) + NUM_BEFORE * odds) / (num_kept + NUM_BEFORE)
        return odds

    def _pass(self, place: _Place) -> None:
        """Move a place to its class of passed places: from now on prompts probably continue from a
        longer place."""
        if place.reopened:
            self._count_kept(place, -1)
        place.passed, place.reopened = True, False
        self._count_kept(place)

    def _count_kept(self, place: _Place, num: int = 1) -> None:
        for each in _with_wider(place.class_):
            self._num_kept[each] = num_kept = max(0, self._num_kept.get(each, 0) + num)
            if num_kept > MAX_COUNTED:
                self._num_kept[each] /= 2
                self._num_used[each] = self._num_used.get(each, 0) / 2


def _with_wider(narrow: _Class) -> Iterator[_Class]:
    """The class and its wider classes, widest first: all places, then its kind and uses."""
    yield from ((), narrow[:2], narrow) if narrow else ((),)
