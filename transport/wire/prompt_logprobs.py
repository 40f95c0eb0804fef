"""Log-probabilities of a prompt's tokens on the wire: rows of 32-bit little-endian words.

The row of a token has its log-probability (float), its rank among all ids in its place (int, the
most probable has 1), and of the k most probable ids there first the ids (int), then their
log-probabilities (float). A row of 131,072 tokens as objects would take a hundred times the memory
and keep an event loop for seconds; so they stay bytes until an answer is written.
"""

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from transport.wire.fields import Positive, WireStruct

WORD_BYTES = 4


class PromptLogprobs(WireStruct, frozen=True, tag="prompt-logprobs"):
    """The next rows of a request's prompt, from token ``start`` on. The first token of a prompt
    (0) follows nothing and has no row. They come in order, and before ``Prefilled``."""

    request_id: str
    attempt: int
    start: Positive
    rows: bytes


def row_bytes(num_top: int) -> int:
    """Bytes of the row of a token with ``num_top`` of the most probable ids."""
    return WORD_BYTES * (2 + 2 * num_top)


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Natural logarithms of a token's probabilities; ``top`` has (id, logprob) pairs, best
    first."""

    logprob: float
    rank: int
    top: list[tuple[int, float]]


def read_rows(rows: bytes, num_top: int) -> Iterator[TokenScore]:
    """The tokens of ``rows`` one after another."""
    ints, floats = array("I"), array("f")
    for words in (ints, floats):
        words.frombytes(rows)
        if sys.byteorder == "big":
            words.byteswap()
    for at in range(0, len(ints), 2 + 2 * num_top):
        ids, values = at + 2, at + 2 + num_top
        top = zip(ints[ids:values], floats[values : values + num_top], strict=True)
        yield TokenScore(floats[at], ints[at + 1], list(top))
