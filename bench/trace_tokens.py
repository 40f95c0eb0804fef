"""Token ids for the requests of a trace: prompts begin alike where their blocks are the same.

``exact``: a block has the same ids in every prompt, and no prompt contains answers. This is what a
trace of hashed prompts says, and what ``baton bench load --prompt-as ids`` sends.

``continued``: a prompt that looks like the next turn of an earlier request also begins with the ids
of that request's last block and answer. A trace does not show this, since a block that is not full
has a hash of its own. A prompt is assumed to be a next turn if it begins with all whole blocks of
an earlier prompt, at least two, has no more blocks in common with any other, and is longer than the
earlier prompt and its answer together.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.harness.workload.plan import Planned
from transport.wire.token_ids import ID_BYTES, TokenIds, from_wire


@dataclass(frozen=True)
class Turn:
    """The token ids of a request: of its prompt, and of prompt and answer."""

    at_s: float
    prompt: TokenIds
    whole: TokenIds


def turns(plan: Sequence[Planned], *, continued: bool, seed: int = 0) -> Iterator[Turn]:
    """The requests of a plan with their token ids, in order of time."""
    before = continues(plan) if continued else [None] * len(plan)
    ids = _Ids(seed)
    for index, (planned, earlier) in enumerate(zip(plan, before, strict=True)):
        if earlier is not None:
            ids.go_on(planned, plan[earlier], earlier)
        prompt = ids.prompt(planned)
        yield Turn(planned.at_s, from_wire(prompt), from_wire(prompt + ids.answer(index, planned)))


def continues(plan: Sequence[Planned]) -> list[int | None]:
    """For each request, the index of the earlier one that it continues, or None."""
    found: list[int | None] = []
    first_with: dict[int, int] = {}  # block to request
    last_ending: dict[int, int] = {}  # block to the last request whose last whole block it is
    for index, planned in enumerate(plan):
        blocks = planned.blocks[: planned.input_len // planned.block_len]
        shared = next((n for n, b in enumerate(blocks) if b not in first_with), len(blocks))
        earlier = None
        if shared >= 2:
            earlier = last_ending.get(blocks[shared - 1])
            # Many prompts that begin with the same blocks are no conversation.
            if earlier is not None and first_with[blocks[shared - 1]] != earlier:
                earlier = None
        if earlier is not None:
            other = plan[earlier]
            if other.input_len + other.output_len >= planned.input_len:
                earlier = None
        found.append(earlier)
        for block in blocks:
            first_with.setdefault(block, index)
        if blocks:
            last_ending[blocks[-1]] = index
    return found


class _Ids:
    """Token ids as bytes, four per id."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._given: dict[int, bytes] = {}  # blocks that are not drawn

    def prompt(self, planned: Planned) -> bytes:
        blocks = b"".join(self._block(block, planned.block_len) for block in planned.blocks)
        return blocks[: planned.input_len * ID_BYTES]

    def answer(self, index: int, planned: Planned) -> bytes:
        return self._draw(f"answer {index}", planned.output_len)

    def go_on(self, planned: Planned, earlier: Planned, index: int) -> None:
        """Make ``planned`` begin with the prompt and the answer of ``earlier``."""
        first = earlier.input_len // earlier.block_len
        size = planned.block_len * ID_BYTES
        said = self.prompt(earlier)[first * size :] + self.answer(index, earlier)
        for number, start in enumerate(range(0, len(said), size)):
            block = planned.blocks[first + number]
            piece = said[start : start + size]
            self._given[block] = piece + self._block(block, planned.block_len)[len(piece) :]

    def _block(self, block: int, block_len: int) -> bytes:
        return self._given.get(block) or self._draw(f"block {block}", block_len)

    def _draw(self, what: str, num_tokens: int) -> bytes:
        return random.Random(f"{self._seed} {what}").randbytes(num_tokens * ID_BYTES)
