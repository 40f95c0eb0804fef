"""Kinds of places where states are kept, and how likely a prompt goes on there. Pure."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
"""How many counted places the odds of a wider class are worth: those of a class are near them until
it has more."""
SHORTEST, LONGEST = 9, 15
"""Bits of the numbers of new tokens that are told apart, from 511 to 16,384."""

_Class = tuple[Kind | int | bool, ...]
"""All places, those of a kind, and those that have more and more in common."""


@dataclass(slots=True)
class _Place:
    """``start``: as much of it was of an earlier prompt. ``later_turn``: it went on from where one
    other prompt only had gone on. ``num_uses``: prompts that went on from it. ``passed``: a prompt
    has a longer place behind it, where the next one is likely to go on instead. ``reopened``: it
    was counted once more since its last use, as it is now."""

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
    """How many of the places of each class a later prompt went on from, by counts.

    A class is a kind, how often prompts went on from the place and whether one has passed it,
    whether its prompt was a later turn, and how many tokens were new in it. After each use a place
    is counted again, since it may be used again.

    Places are remembered when their prefixes are evicted, too. The odds of what is kept only would
    be those of the eviction: a kind that is evicted early has no uses, and would never have any.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[bytes, _Place] = OrderedDict()  # by the key of the whole pages
        self._num_kept: dict[_Class, float] = {}
        self._num_used: dict[_Class, float] = {}

    def note_kept(self, page_keys: Sequence[bytes], kind: Kind, num_tokens: int) -> None:
        """A state is kept behind the whole pages that have these keys, for the first 0, 1, ..., or
        within the page after them. A place stays of the kind that it was first, wherever its state
        comes from later."""
        if page_keys[-1] in self._places:
            return
        keys = reversed(page_keys[1:-1])
        shorter = [place for key in keys if (place := self._places.get(key)) is not None]
        last = shorter[0] if shorter else _NOTHING
        start = last.num_tokens if last.num_uses else last.start  # an unused one is of this prompt
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
        """A prompt goes on from the longest place of at most ``max_tokens`` tokens that it has,
        whether that is kept still or not."""
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
        """Of the place behind these whole pages: between 0 and 1, neither included."""
        odds, place = 0.5, self._places.get(pages_key)
        for each in _with_wider(place.class_ if place is not None else ()):
            num_kept, num_used = self._num_kept.get(each, 0), self._num_used.get(each, 0)
            odds = (min(num_used, num_kept) + NUM_BEFORE * odds) / (num_kept + NUM_BEFORE)
        return odds

    def _pass(self, place: _Place) -> None:
        """It was open to a use only until now: what was counted at its last use is moved."""
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
    """All places, those of its kind and uses, and the class itself."""
    yield from ((), narrow[:2], narrow) if narrow else ((),)
