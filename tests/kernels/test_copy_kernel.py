"""Blocks copied byte for byte at odd sizes and places, and nothing beside them touched."""

import random

import pytest
import torch

from transport.copy.kernel import (
    BlockBytes,
    CopyShape,
    copy_blocks,
    read_words,
    reference_copy,
    stage,
)

GAP = 48
SHAPES = [
    CopyShape(num_programs=3, num_warps=4, tile_bytes=1024),
    CopyShape(num_programs=1, num_warps=1, tile_bytes=4096),
    CopyShape(num_programs=16, num_warps=8, tile_bytes=64),
]
SIZES = [
    BlockBytes(page=2048, conv=432, recurrent=8192),
    BlockBytes(page=1040, conv=16, recurrent=1008),
    BlockBytes(page=264, conv=72, recurrent=1000),
    BlockBytes(page=100, conv=12, recurrent=516),
    BlockBytes(page=34, conv=6, recurrent=70),
    BlockBytes(page=7, conv=1, recurrent=13),
    BlockBytes(page=2048, conv=0, recurrent=0),
    BlockBytes(page=1024, conv=0, recurrent=0, window=5120),
    BlockBytes(page=264, conv=72, recurrent=1000, window=1400),
]


def scattered(kinds: list[int], granularity: int, rng: random.Random) -> list[int]:
    """An offset for a block of each size, in random order, with gaps between."""
    offsets, end = [0] * len(kinds), 0
    for block in rng.sample(range(len(kinds)), len(kinds)):
        end += rng.randrange(0, GAP, granularity)
        offsets[block] = end
        end += kinds[block]
    return offsets


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("counts", [(0, 1, 0), (1, 1, 1), (5, 3, 9), (16, 0, 0), (17, 16, 40)])
def test_every_block_arrives_and_nothing_else_changes(
    sizes: BlockBytes, counts: tuple[int, int, int], device: torch.device
) -> None:
    rng = random.Random(str((sizes, counts)))
    num_pages, num_states, num_windows = counts
    kinds = [sizes.page] * num_pages + [sizes.conv] * num_states + [sizes.recurrent] * num_states
    kinds += [sizes.window] * num_windows
    room = sum(kinds) + GAP * len(kinds)
    source = torch.randint(0, 256, (room,), dtype=torch.uint8, device=device)
    untouched = torch.randint(0, 256, (room,), dtype=torch.uint8, device=device)
    ends = [scattered(kinds, sizes.granularity, rng) for _ in range(2)]
    offsets = torch.tensor(ends, dtype=torch.int64).T.contiguous()

    def table(target: torch.Tensor) -> torch.Tensor:
        return offsets + torch.tensor([source.data_ptr(), target.data_ptr()])

    expected = untouched.clone()
    reference_copy(source, expected, table(expected), num_pages, num_states, sizes, num_windows)
    for shape in SHAPES:
        target = untouched.clone()
        longer = torch.cat((table(target), torch.zeros(3, 2, dtype=torch.int64)))
        copy_blocks(longer.to(device), torch.tensor(counts, device=device), sizes, shape)
        assert torch.equal(target, expected), shape


def test_the_largest_access_that_every_size_allows() -> None:
    assert [sizes.granularity for sizes in SIZES] == [16, 16, 8, 4, 2, 1, 16, 16, 8]
    assert BlockBytes(page=1_310_720, conv=1_474_560, recurrent=62_914_560).granularity == 16


@pytest.mark.parametrize("num_states", [0, 1, 3, 64, 65, 130])
def test_words_are_read_where_they_lie(num_states: int, device: torch.device) -> None:
    words = torch.arange(100, 140, dtype=torch.int64, device=device)
    picked = torch.randint(0, 40, (130,), device=device)
    out = torch.full((130,), -1, dtype=torch.int64, device=device)
    counts = torch.tensor((7, num_states, 5), device=device)
    read_words(words.data_ptr() + 8 * picked, counts, out)
    assert torch.equal(out[:num_states], 100 + picked[:num_states])
    assert bool((out[num_states:] == -1).all())


@pytest.mark.parametrize("counts", [(0, 0, 0), (1, 1, 0), (700, 3, 7), (2000, 9, 90)])
def test_no_more_is_staged_than_the_counts_say(
    counts: tuple[int, int, int], device: torch.device
) -> None:
    first_block, num_words = 12, 5000
    staged = torch.arange(num_words)
    staged[:3] = torch.tensor(counts)
    if device.type == "cuda":
        staged = staged.pin_memory()
    on_device = torch.full((num_words,), -1, device=device)
    stage(staged, on_device, first_block)
    num_pages, num_states, num_windows = counts
    end = first_block + 2 * (num_pages + 2 * num_states + num_windows)
    assert torch.equal(on_device[:end].cpu(), staged[:end])
    assert bool((on_device[end:] == -1).all())


@pytest.mark.parametrize(
    ("field", "value"), [("num_programs", 0), ("num_warps", 3), ("tile_bytes", 8)]
)
def test_a_shape_that_cannot_be_launched_is_named(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field}: {value}"):
        CopyShape(**{field: value})
