"""How the prefill chunks of a pass are cut into programs: built once, read by every layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.upload import upload, upload_parts

BLOCK = 64
"""Tokens of a delta-rule block. Blocks count from each chunk's first token."""


@dataclass(frozen=True)
class PrefillPlan:
    """int32 tensors on the device, from one transfer.

    ``firsts`` [rows + 1]: each row's first token in the pass. ``starts`` [rows]: tokens already in
    the cache. ``block_firsts`` [rows + 1] counts blocks as ``firsts`` counts tokens, ``block_rows``
    [blocks] is each block's row. ``token_rows`` [tokens] is each token's row. ``tiles`` [tiles, 2]
    holds row and first token (within the row) of each ``tile_len`` queries, longest context first.
    """

    firsts: torch.Tensor
    starts: torch.Tensor
    block_firsts: torch.Tensor
    block_rows: torch.Tensor
    token_rows: torch.Tensor
    tiles: torch.Tensor
    tile_len: int

    @property
    def num_tokens(self) -> int:
        return self.token_rows.shape[0]

    @classmethod
    def of(
        cls, starts: Sequence[int], lens: Sequence[int], device: torch.device, tile_len: int = 16
    ) -> "PrefillPlan":
        """``starts`` and ``lens`` (at least 1) of the rows, in token order."""
        assert min(lens) > 0, lens
        num_blocks = [-(-length // BLOCK) for length in lens]
        tiles = [
            (start + first, row, first)
            for row, (start, length) in enumerate(zip(starts, lens, strict=True))
            for first in range(0, length, tile_len)
        ]
        tiles.sort(key=lambda tile: -tile[0])
        parts = (
            _firsts(lens),
            list(starts),
            _firsts(num_blocks),
            [row for row, count in enumerate(num_blocks) for _ in range(count)],
            [value for _, *tile in tiles for value in tile],
        )
        split = upload_parts(parts, torch.int32, device)
        rows = torch.arange(len(lens), dtype=torch.int32).repeat_interleave(torch.tensor(lens))
        return cls(
            firsts=split[0],
            starts=split[1],
            block_firsts=split[2],
            block_rows=split[3],
            token_rows=upload(rows, device),
            tiles=split[4].view(-1, 2),
            tile_len=tile_len,
        )


def _firsts(counts: Sequence[int]) -> list[int]:
    firsts = [0]
    for count in counts:
        firsts.append(firsts[-1] + count)
    return firsts
