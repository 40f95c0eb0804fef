"""Unpacked numbers and NVFP4's rounding, against loops over single numbers."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.quantized import integers, nvfp4

SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NUMBERS = [sign * size for size in SIZES for sign in (1, -1)]
seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.sampled_from((4, 8)), st.integers(1, 5), st.integers(1, 3))
def test_integers_are_taken_from_the_lowest_bits_on(
    seed: int, bits: int, rows: int, words: int
) -> None:
    packed = np.random.default_rng(seed).integers(0, 2**32, (rows, words), dtype=np.uint32)
    expected = [
        [(int(word) >> bits * i) % 2**bits for word in row for i in range(32 // bits)]
        for row in packed
    ]
    ours = torch.from_numpy(packed.view(np.int32))
    assert integers.unpack(ours, bits, 1).tolist() == expected
    assert integers.unpack(ours.t(), bits, 0).t().tolist() == expected


@given(seeds, st.integers(1, 4), st.integers(1, 3))
def test_the_even_column_is_in_the_low_bits(seed: int, rows: int, groups: int) -> None:
    random = np.random.default_rng(seed)
    packed = random.integers(0, 256, (rows, groups * 8), dtype=np.uint8)
    scale = random.random((rows, groups), dtype=np.float32)
    ours = nvfp4.dequantise(torch.from_numpy(packed), torch.from_numpy(scale))
    for r in range(rows):
        for c in range(groups * 16):
            code = int(packed[r, c // 2]) // (16 if c % 2 else 1) % 16
            number = np.float32(SIZES[code % 8] * (-1 if code >= 8 else 1))
            assert ours[r, c] == number * scale[r, c // 16]


@given(st.floats(-8, 8, width=32))
def test_rounding_takes_the_nearest_number(x: float) -> None:
    ours = float(nvfp4.round_to_e2m1(torch.tensor(x)))
    assert ours in NUMBERS
    assert abs(ours - x) == min(abs(number - x) for number in NUMBERS)


def test_of_two_nearest_numbers_the_even_one_is_taken() -> None:
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert nvfp4.round_to_e2m1(middles).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert nvfp4.round_to_e2m1(-middles).tolist() == [-0.0, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0]


@given(seeds, st.sampled_from(("normal", "uniform", "outliers")), st.integers(1, 4))
def test_each_group_gets_the_scale_of_least_error(seed: int, kind: str, groups: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand(3, 16 * groups, generator=random) * 2 - 1
    if kind == "normal":
        rows = torch.randn(3, 16 * groups, generator=random)
    elif kind == "outliers":
        rows = torch.where(rows > 0.8, 6.0, rows * 5)
    values = nvfp4.rounded(rows).unflatten(1, (groups, 16))
    matrix_scale = rows.abs().max() / (6 * 448)
    codes = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    grid = (codes.float() * matrix_scale)[:, None] * torch.tensor(NUMBERS)
    for own, group in zip(values.reshape(-1, 16), rows.reshape(-1, 16), strict=True):
        assert ((grid[:, None] == own[:, None]).any(-1)).all(-1).any(), "no scale has these values"
        errors = (grid[:, None] - group[:, None]).abs().amin(-1).square().sum(-1)
        assert (own - group).square().sum() <= errors.min() * (1 + 1e-5)


def test_zeros_and_columns_that_fill_no_group() -> None:
    assert nvfp4.rounded(torch.zeros(2, 20)).eq(0).all()
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(1)).bfloat16()
    padded = torch.cat((rows, torch.zeros(3, 8)), 1)
    assert torch.equal(nvfp4.rounded(rows), nvfp4.rounded(padded)[:, :40])
