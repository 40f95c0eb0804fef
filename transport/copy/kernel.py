"""Copy blocks of bytes from peers' memory into this process's: one launch for several handoffs.

A cache consists of four kinds of blocks, each kind of one size: pages (``page_size`` tokens of
attention layers), conv states, recurrent states and window pages. Let S_b and D_b be the addresses
of block b at its source and at its target, and n_b its size. Then the kernel computes

    D_b[i] = S_b[i]    for every block b of ``table`` and 0 <= i < n_b.

It copies words of at most 8 bytes, in vectors of 16 where the sizes allow it. The work is cut into
tiles of ``tile_bytes``, which a fixed number of programs takes in turn, so that a copy of any
length uses the same few multiprocessors and leaves the rest to the decode step. Each program has a
whole tile in flight before it stores any of it; together the programs hide the latency of NVLink.

Reference: the formula above; test: tests/kernels/test_copy_kernel.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from dataclasses import dataclass
from math import gcd

import torch
import triton
import triton.language as tl

from transport.copy.tensors import CacheTensors

_VECTOR_BYTES = 16
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_TRITON_WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


@dataclass(frozen=True)
class CopyShape:
    """How much of the GPU a copy takes: ``num_programs`` thread blocks of ``num_warps`` warps,
    each with ``tile_bytes`` in flight."""

    num_programs: int = 32
    num_warps: int = 16
    tile_bytes: int = 128 << 10

    def __post_init__(self) -> None:
        if self.num_programs < 1:
            raise ValueError(f"num_programs: {self.num_programs} < 1")
        for name, value in (("num_warps", self.num_warps), ("tile_bytes", self.tile_bytes)):
            if value < 1 or value & (value - 1):
                raise ValueError(f"{name}: {value} is not a power of two")
        if self.tile_bytes < _VECTOR_BYTES:
            raise ValueError(f"tile_bytes: {self.tile_bytes} < {_VECTOR_BYTES}")


@dataclass(frozen=True)
class BlockBytes:
    """The sizes of the four kinds of blocks."""

    page: int
    conv: int
    recurrent: int
    window: int = 0

    @classmethod
    def in_cache(cls, cache: CacheTensors) -> "BlockBytes":
        kinds = cache.kv[0], cache.conv[0], cache.recurrent[0], cache.window_pages[:1]
        return cls(*(block.nbytes for block in kinds))

    @property
    def granularity(self) -> int:
        """The largest power of two up to 16 that divides every size, and so every address."""
        return gcd(self.page, self.conv, self.recurrent, self.window, _VECTOR_BYTES)

    def of(self, num_pages: int, num_states: int, num_windows: int = 0) -> int:
        """Bytes of this many pages, states and window pages."""
        num_bytes = num_pages * self.page + num_states * (self.conv + self.recurrent)
        return num_bytes + num_windows * self.window


def stage(staged: torch.Tensor, on_device: torch.Tensor, first_block: int) -> None:
    """Enqueue the copy of a staged table to the device on the current stream.

    Both are [words] int64; ``staged`` is in pinned memory, which the kernel reads: the counts of
    pages, of states and of window pages, anything up to ``first_block``, then the table of
    ``copy_blocks``. Only as many rows are copied as the counts say when the kernel runs.
    """
    assert staged.shape == on_device.shape, (staged.shape, on_device.shape)
    assert staged.dtype == on_device.dtype == torch.int64
    _stage_kernel[(8,)](staged, on_device, FIRST=first_block, BLOCK=256, num_warps=4)


def copy_blocks(
    table: torch.Tensor, counts: torch.Tensor, sizes: BlockBytes, shape: CopyShape
) -> None:
    """Enqueue the copy of every block of ``table`` on the current stream.

    ``counts`` [3] int64: how many pages, states and window pages there are when this runs.
    ``table`` [num_pages + 2 * num_states + num_windows or more, 2] int64: the address of each
    block at its source and at its target, pages first, then conv states, recurrent states and
    window pages. Both are on the device that copies.
    All addresses are multiples of ``sizes.granularity``, and valid until the copy is done; no
    target overlaps another source or target.
    """
    assert table.shape[1:] == (2,), table.shape
    assert counts.shape == (3,), counts.shape
    assert table.dtype == counts.dtype == torch.int64
    assert table.is_contiguous()
    word = min(8, sizes.granularity)
    _copy_kernel[(shape.num_programs,)](
        table,
        counts,
        PAGE=sizes.page // word,
        CONV=sizes.conv // word,
        RECURRENT=sizes.recurrent // word,
        WINDOW=sizes.window // word,
        TILE=shape.tile_bytes // word,
        WORD=_TRITON_WORDS[word],
        VECTOR=sizes.granularity // word,
        num_warps=shape.num_warps,
    )


def reference_copy(
    source: torch.Tensor,
    target: torch.Tensor,
    table: torch.Tensor,
    num_pages: int,
    num_states: int,
    sizes: BlockBytes,
    num_windows: int = 0,
) -> None:
    """``copy_blocks`` in PyTorch. ``source`` and ``target``, uint8, hold every address of
    ``table``."""
    kinds = [sizes.page] * num_pages + [sizes.conv] * num_states + [sizes.recurrent] * num_states
    kinds += [sizes.window] * num_windows
    for (source_at, target_at), num_bytes in zip(table.tolist(), kinds, strict=True):
        begin, into = source_at - source.data_ptr(), target_at - target.data_ptr()
        target[into : into + num_bytes] = source[begin : begin + num_bytes]


def read_words(addresses: torch.Tensor, counts: torch.Tensor, out: torch.Tensor) -> None:
    """Enqueue out[i] = the int64 at ``addresses``[i], for i below the number of states of
    ``counts``, on the current stream.

    ``addresses`` [n], ``counts`` [3] int64 on the device that reads, ``out`` [n] there or in
    pinned memory. A kernel of its own, so that it reads after every copy before it has ended.
    """
    assert addresses.shape == out.shape == (len(addresses),), (addresses.shape, out.shape)
    assert addresses.dtype == counts.dtype == out.dtype == torch.int64
    _words_kernel[(1,)](addresses, counts, out, BLOCK=64, num_warps=2)


@triton.jit
def _stage_kernel(p_staged, p_on_device, FIRST: tl.constexpr, BLOCK: tl.constexpr):
    num_blocks = tl.load(p_staged) + 2 * tl.load(p_staged + 1) + tl.load(p_staged + 2)
    end = FIRST + 2 * num_blocks.to(tl.int32)
    for start in range(tl.program_id(0) * BLOCK, end, tl.num_programs(0) * BLOCK):
        o_word = start + tl.arange(0, BLOCK)
        b_word = tl.load(p_staged + o_word, mask=o_word < end)
        tl.store(p_on_device + o_word, b_word, mask=o_word < end)


@triton.jit
def _copy_kernel(
    p_table,
    p_counts,
    PAGE: tl.constexpr,
    CONV: tl.constexpr,
    RECURRENT: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    WORD: tl.constexpr,
    VECTOR: tl.constexpr,
):
    page_tiles: tl.constexpr = (PAGE + TILE - 1) // TILE
    conv_tiles: tl.constexpr = (CONV + TILE - 1) // TILE
    recurrent_tiles: tl.constexpr = (RECURRENT + TILE - 1) // TILE
    window_tiles: tl.constexpr = (WINDOW + TILE - 1) // TILE
    # Most models have none of some of these tiles; the divisors must not be 0 for all that.
    by_conv: tl.constexpr = conv_tiles if CONV > 0 else 1
    by_recurrent: tl.constexpr = recurrent_tiles if RECURRENT > 0 else 1
    by_window: tl.constexpr = window_tiles if WINDOW > 0 else 1
    num_pages = tl.load(p_counts).to(tl.int32)
    num_states = tl.load(p_counts + 1).to(tl.int32)
    end_pages = num_pages * page_tiles
    end_conv = end_pages + num_states * conv_tiles
    end_recurrent = end_conv + num_states * recurrent_tiles
    end = end_recurrent + tl.load(p_counts + 2).to(tl.int32) * window_tiles
    for tile in range(tl.program_id(0), end, tl.num_programs(0)):
        if tile < end_pages:
            block = tile // page_tiles
            first = tile % page_tiles * TILE
            num_words = PAGE
        elif tile < end_conv:
            block = num_pages + (tile - end_pages) // by_conv
            first = (tile - end_pages) % by_conv * TILE
            num_words = CONV
        elif tile < end_recurrent:
            block = num_pages + num_states + (tile - end_conv) // by_recurrent
            first = (tile - end_conv) % by_recurrent * TILE
            num_words = RECURRENT
        else:
            block = num_pages + 2 * num_states + (tile - end_recurrent) // by_window
            first = (tile - end_recurrent) % by_window * TILE
            num_words = WINDOW
        o_word = tl.multiple_of(first, VECTOR) + tl.arange(0, TILE)
        is_mine = o_word < tl.multiple_of(num_words, VECTOR)
        source = tl.load(p_table + 2 * block).to(tl.pointer_type(WORD))
        target = tl.load(p_table + 2 * block + 1).to(tl.pointer_type(WORD))
        align: tl.constexpr = VECTOR * WORD.primitive_bitwidth // 8
        b_word = tl.load(tl.multiple_of(source, align) + o_word, mask=is_mine)
        tl.store(tl.multiple_of(target, align) + o_word, b_word, mask=is_mine)


@triton.jit
def _words_kernel(p_addresses, p_counts, p_out, BLOCK: tl.constexpr):
    num_states = tl.load(p_counts + 1).to(tl.int32)
    for start in range(0, num_states, BLOCK):
        i = start + tl.arange(0, BLOCK)
        is_mine = i < num_states
        p_word = tl.load(p_addresses + i, mask=is_mine, other=0).to(tl.pointer_type(tl.int64))
        b_word = tl.load(p_word, mask=is_mine, volatile=True)
        tl.store(p_out + i, b_word, mask=is_mine)
