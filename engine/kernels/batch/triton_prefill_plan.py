"""The plan of a prefill pass: how its chunks are cut into programs. Built once, for every layer.

Reference: engine/ragged.py; test: tests/engine/test_prefill_graphs.py, test_attention.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.batch import Keep
from engine.upload import upload_parts

BLOCK = 64
"""Tokens of a delta-rule block. Blocks are counted from each chunk's first token."""
TILE_LEN = 16
"""Queries of an attention tile."""
_NONE = (0, -1)
"""A row of ``HostPlan.keeps`` that keeps nothing."""


@dataclass(frozen=True)
class HostPlan:
    """A plan's arrays, int32, before they go to the device.

    ``firsts`` [rows + 1]: each row's first token in the pass. ``starts`` [rows]: tokens already in
    the cache. ``keeps`` [rows, 2]: (number of tokens behind which a row's state is also stored, the
    state slot for it), or (0, -1). ``block_firsts`` [rows + 1] counts blocks as
    ``firsts`` counts tokens, ``block_rows`` [blocks] is each block's row. ``token_rows`` [tokens]
    is each token's row. ``tiles`` [tiles, 2] holds row and first token (within the row) of each
    tile of queries, longest context first.
    """

    firsts: np.ndarray
    starts: np.ndarray
    keeps: np.ndarray
    block_firsts: np.ndarray
    block_rows: np.ndarray
    token_rows: np.ndarray
    tiles: np.ndarray

    @classmethod
    def of(
        cls,
        starts: Sequence[int],
        lens: Sequence[int],
        tile_len: int = TILE_LEN,
        *,
        keeps: Sequence[Keep | None] = (),
    ) -> "HostPlan":
        """The plan of rows with these ``starts`` and ``lens`` (at least 1), in token order; there
        may be no rows. ``keeps`` is empty if no row keeps a state."""
        assert min(lens, default=1) > 0, lens
        num_tokens, begin = np.array(lens, dtype=np.int32), np.array(starts, dtype=np.int32)
        rows = np.arange(len(lens), dtype=np.int32)
        num_blocks, num_tiles = -(-num_tokens // BLOCK), -(-num_tokens // tile_len)
        tile_rows = rows.repeat(num_tiles)
        queries = (np.arange(len(tile_rows)) - _firsts(num_tiles)[tile_rows]) * tile_len
        kept = [(keep.num_tokens, keep.state_slot) if keep else _NONE for keep in keeps]
        order = np.argsort(-(begin[tile_rows] + queries), kind="stable")
        tiles = np.stack((tile_rows, queries.astype(np.int32)), axis=1)[order]
        return cls(
            firsts=_firsts(num_tokens),
            starts=begin,
            keeps=np.array(kept or [_NONE] * len(lens), dtype=np.int32).reshape(-1, 2),
            block_firsts=_firsts(num_blocks),
            block_rows=rows.repeat(num_blocks),
            token_rows=rows.repeat(num_tokens),
            tiles=tiles,
        )

    def padded(self, num_tokens: int, num_rows: int) -> "HostPlan":
        """The plan padded to the largest size of any plan of at most ``num_tokens`` and
        ``num_rows``, plus a last row. That row and all rows without tokens are empty, and surplus
        entries belong to it: their programs return at once."""
        sizes = padded_sizes(num_tokens, num_rows)
        return HostPlan(
            firsts=_longer(self.firsts, sizes["firsts"], self.firsts[-1]),
            starts=_longer(self.starts, sizes["starts"], 0),
            keeps=_longer(self.keeps, sizes["keeps"] // 2, _NONE),
            block_firsts=_longer(self.block_firsts, sizes["block_firsts"], self.block_firsts[-1]),
            block_rows=_longer(self.block_rows, sizes["block_rows"], num_rows),
            token_rows=_longer(self.token_rows, sizes["token_rows"], num_rows),
            tiles=_longer(self.tiles, sizes["tiles"] // 2, (num_rows, 0)),
        )


def padded_sizes(num_tokens: int, num_rows: int) -> dict[str, int]:
    """Number of elements of each array of a ``HostPlan.padded``; ``num_tokens`` is a multiple of a
    block."""
    assert num_tokens % BLOCK == BLOCK % TILE_LEN == 0, num_tokens
    return {
        "firsts": num_rows + 2,
        "starts": num_rows + 1,
        "keeps": 2 * (num_rows + 1),
        "block_firsts": num_rows + 2,
        "block_rows": num_tokens // BLOCK + num_rows,
        "token_rows": num_tokens,
        "tiles": 2 * (num_tokens // TILE_LEN + num_rows),
    }


@dataclass(frozen=True)
class PrefillPlan:
    """A ``HostPlan`` on the device."""

    firsts: torch.Tensor
    starts: torch.Tensor
    keeps: torch.Tensor
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
        cls,
        starts: Sequence[int],
        lens: Sequence[int],
        device: torch.device,
        tile_len: int = TILE_LEN,
        *,
        keeps: Sequence[Keep | None] = (),
    ) -> "PrefillPlan":
        """``HostPlan.of`` of at least one row, copied to the device by one transfer."""
        assert lens, "a plan without rows"
        return cls.upload(HostPlan.of(starts, lens, tile_len, keeps=keeps), device, tile_len)

    @classmethod
    def upload(cls, plan: HostPlan, device: torch.device, tile_len: int) -> "PrefillPlan":
        arrays = {name: array.ravel() for name, array in vars(plan).items()}
        parts = upload_parts(list(arrays.values()), torch.int32, device)
        return cls.from_parts(dict(zip(arrays, parts, strict=True)), tile_len)

    @classmethod
    def from_parts(
        cls, parts: Mapping[str, torch.Tensor], tile_len: int = TILE_LEN
    ) -> "PrefillPlan":
        """The plan of a ``HostPlan``'s arrays on the device, given by name, each a vector."""
        return cls(
            firsts=parts["firsts"],
            starts=parts["starts"],
            keeps=parts["keeps"].view(-1, 2),
            block_firsts=parts["block_firsts"],
            block_rows=parts["block_rows"],
            token_rows=parts["token_rows"],
            tiles=parts["tiles"].view(-1, 2),
            tile_len=tile_len,
        )


def _firsts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], counts.cumsum())).astype(np.int32)


def _longer(array: np.ndarray, length: int, value: int | tuple[int, int]) -> np.ndarray:
    assert len(array) <= length, (len(array), length)
    padding = np.full((length - len(array), *array.shape[1:]), value, dtype=np.int32)
    return np.concatenate((array, padding))
