"""What kernels are given on GPUs that cannot be had here."""

import pytest
import torch

from engine import gpu_arch
from engine.kernels import triton_overlap
from engine.kernels.attention import triton_attention_prefill
from engine.kernels.dense import triton_linear
from engine.model.matrix import Matrix


@pytest.mark.parametrize(
    ("arch", "overlaps"), [(gpu_arch.CPU, False), (80, False), (89, False), (90, True), (120, True)]
)
def test_dependent_launch_is_for_hopper_and_newer(
    arch: int, overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_overlap, "arch_of", lambda _: arch)
    options = triton_overlap.overlap(torch.zeros(1))
    assert options == ({"PDL": True, "launch_pdl": True} if overlaps else {"PDL": False})


@pytest.mark.parametrize(
    ("arch", "head_dim", "keys"), [(90, 256, 64), (80, 256, 64), (86, 128, 64), (120, 256, 16)]
)
def test_blocks_of_keys_fit_in_shared_memory(
    arch: int, head_dim: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_attention_prefill, "arch_of", lambda _: arch)
    assert triton_attention_prefill.keys_at_once(torch.zeros(1, 1, head_dim)) == keys


@pytest.mark.parametrize(("arch", "dtype"), [(86, torch.bfloat16), (89, torch.float8_e4m3fn)])
def test_no_operand_has_a_type_that_the_gpu_lacks(
    arch: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_linear, "arch_of", lambda _: arch)
    x = torch.zeros(1, 128, dtype=torch.bfloat16)
    w = Matrix.of(torch.zeros(64, 128, dtype=torch.bfloat16))
    assert triton_linear.operands(x, w, None)[2].dtype == dtype


def test_an_unknown_architecture_has_the_least_shared_memory() -> None:
    assert gpu_arch.shared_bytes(150) == gpu_arch.shared_bytes(86) == 99 << 10
