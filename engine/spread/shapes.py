"""The shapes of spread steps: how many members, how many sequences of each, and how many drafts of
each sequence, a graph is for. Pure.

All members of a step launch the same shape, and exchange its tokens, padding included. Where a
member's sequences are too many for the drafts that are wanted, fewer drafts are verified.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from transport.wire.spread import MAX_MEMBERS, MAX_ROWS

GROUP_SIZES = (2, 4, MAX_MEMBERS)
"""Decoding members for which graphs have room: those of a step are for the smallest size that holds
the group. So a group that loses a member captures nothing, the tiles are those of at most twice the
rows, and at most half of the programs that take a row have none."""

EXCHANGED = (8, 16, 32, 48, 64, 96, 128, 192, MAX_ROWS)
"""Tokens of a member, about: so few that the graphs of each number of drafts take little time to
capture. What is added to a step's rows costs little, since their experts are none."""


class SpreadShape(NamedTuple):
    """``bucket`` sequences of a member at most, with ``num_drafts`` each."""

    bucket: int
    num_drafts: int = 0

    @property
    def num_tokens(self) -> int:
        """What each member exchanges in each layer."""
        return self.bucket * (1 + self.num_drafts)


Shapes = tuple[SpreadShape, ...]


def group_size(num_decoding: int) -> int:
    """Size of the graphs that a group of ``num_decoding`` decoding members launches."""
    return next(size for size in GROUP_SIZES if size >= num_decoding)


def sizes_on(num_gpus: int) -> tuple[int, ...]:
    """Sizes of the graphs that groups on a node with so many GPUs may launch: each member has a GPU
    of its own."""
    return tuple(size for size in GROUP_SIZES if least_members(size) <= num_gpus)


def least_members(size: int) -> int:
    """Decoding members of the smallest group that launches graphs of this size."""
    return max((smaller for smaller in GROUP_SIZES if smaller < size), default=0) + 1


def plain_shapes(buckets: Iterable[int]) -> Shapes:
    """Without a draft layer."""
    return tuple(SpreadShape(bucket) for bucket in buckets)


def draft_shapes(max_drafts: int, num_slots: int = MAX_ROWS) -> Shapes:
    """With up to so many drafts, of members that have so many state slots."""
    found: Shapes = ()
    for num_drafts in range(max_drafts + 1):
        buckets = sorted({tokens // (1 + num_drafts) for tokens in EXCHANGED})
        last = next((i for i, bucket in enumerate(buckets) if bucket >= num_slots), len(buckets))
        found += tuple(SpreadShape(bucket, num_drafts) for bucket in buckets[: last + 1])
    return found


def most_rows(shapes: Shapes) -> int:
    """The most sequences of a member that a step of any of these shapes has room for."""
    return max(shape.bucket for shape in shapes)


def fits(shapes: Shapes, rows: int) -> bool:
    """Whether a step of so many sequences can be spread."""
    return rows <= most_rows(shapes)


def shape_for(shapes: Sequence[SpreadShape], rows: int, drafts: int) -> SpreadShape:
    """The smallest that holds so many sequences, with as many of these drafts as can be."""
    holding = [each for each in shapes if each.bucket >= rows and each.num_drafts <= drafts]
    return min(holding, key=lambda each: (-each.num_drafts, each.bucket))
