"""The base of every struct on the wire, and the ranges of its numbers.

Ranges are checked when a message is decoded: a number out of range from one worker would otherwise
reach the coordinator's arithmetic and metrics.
"""

from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, lt=2**53)]
Positive = Annotated[int, Meta(ge=1, lt=2**53)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Seconds = Annotated[float, Meta(gt=-1e9, lt=1e9)]


class WireStruct(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass
