"""Single matrices in each format, of the group sizes that checkpoints have."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.quantized.awq import Awq
from engine.quantized.compressed_tensors import NVFP4, PackQuantized
from engine.quantized.format import Format
from engine.quantized.gptq import Gptq
from engine.quantized.integers import GROUPS
from engine.quantized.modelopt import FUSED, LINEAR
from engine.quantized.scaled import Fp8Blocks, PerRow
from tests.engine.quantized.checkpoints import (
    Writer,
    awq,
    compressed_nvfp4,
    gptq,
    modelopt_fp8,
    modelopt_nvfp4,
    pack_quantized,
    per_row,
)

FORMS: list[tuple[Format, Writer]] = [
    (LINEAR, modelopt_nvfp4),
    (NVFP4, compressed_nvfp4),
    (PerRow("F8_E4M3"), modelopt_fp8),
    (PerRow("F8_E4M3"), per_row(torch.float8_e4m3fn)),
    (PerRow("I8"), per_row(torch.int8)),
    (PackQuantized(8, None, symmetric=False), pack_quantized(8, None, symmetric=False)),
]
for group in GROUPS:
    for bits in (4, 8):
        for symmetric in (True, False):
            form = PackQuantized(bits, group, symmetric)
            FORMS.append((form, pack_quantized(bits, group, symmetric=symmetric)))
    FORMS.append((Awq(group), awq(group)))
    FORMS.append((Gptq(group, zero_offset=1), gptq(group, symmetric=False)))
    FORMS.append((Gptq(group, zero_offset=0), gptq(group, symmetric=False, v2=True)))


@given(
    st.sampled_from(FORMS), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_a_matrix_has_the_values_of_an_independent_formula(
    form: tuple[Format, Writer], eights: int, groups: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    matrix = torch.randn(8 * eights, 128 * groups, generator=random)
    found, write = form
    written = write(matrix)
    assert written is not None
    tensors, meant = written
    names = {part.suffix.removeprefix("."): part.key for part in found.parts}
    parts = {names[suffix]: part for suffix, part in tensors.items() if suffix in names}
    assert found.shape({key: tuple(part.shape) for key, part in parts.items()}) == matrix.shape
    assert torch.equal(found.values(parts), meant)


@pytest.mark.parametrize("shape", [(), (3,), (3, 1), (3, 2)])
def test_experts_in_one_tensor_have_matrix_scales_of_several_shapes(shape: tuple[int, ...]) -> None:
    random = torch.Generator().manual_seed(len(shape))
    tensors, _ = modelopt_nvfp4(torch.randn(3, 8, 32, generator=random)) or ({}, None)
    scale = torch.rand(shape, generator=random)
    parts = {
        "packed": tensors["weight"], "scale": tensors["weight_scale"], "matrix_scale": scale
    }  # fmt: skip
    ours = FUSED.values(parts)
    halves = scale.reshape(shape + (1,) * (2 - len(shape))).broadcast_to(3, 2)
    for expert in range(3):
        for half in range(2):
            rows = slice(4 * half, 4 * half + 4)
            apart = {
                "packed": tensors["weight"][expert, rows],
                "matrix_scale": halves[expert, half],
            }
            apart["scale"] = tensors["weight_scale"][expert, rows]
            assert torch.equal(ours[expert, rows], LINEAR.values(apart))


def test_fp8_blocks_that_are_not_full() -> None:
    random = torch.Generator().manual_seed(0)
    numbers = torch.randn(200, 300, generator=random).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3, generator=random)
    found = Fp8Blocks(".weight", ".weight_scale")
    ours = found.values({"numbers": numbers, "scale": scale})
    for r, c in ((0, 0), (127, 128), (128, 127), (199, 299), (130, 256)):
        assert ours[r, c] == numbers[r, c].float() * scale[r // 128, c // 128]
    with pytest.raises(ValueError, match="one per block of 128 x 128"):
        found.shape({"numbers": (200, 300), "scale": (2, 2)})
