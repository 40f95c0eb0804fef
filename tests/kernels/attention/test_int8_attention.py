"""Attention with queries and keys in int8: the kernel in an emulator, or itself on a Hopper GPU."""

import pytest
import torch

from bench.prompt_attention import joined
from engine.gpu_arch import HOPPER
from engine.kernels.attention import gluon_attention, int8_attention
from engine.kernels.attention.triton_int8 import LOG2_E, quantise_keys, quantise_queries
from engine.kernels.triton_arch import arch_of
from tests.kernels.closeness import relative_error
from tests.kernels.gluon_threads import Emulated

DIM = gluon_attention.DIM.value
TILE = gluon_attention.TILE.value


@pytest.fixture(autouse=True)
def _emulated(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type == "cuda":
        if arch_of(torch.empty(0, device=device)) != HOPPER:
            pytest.skip("a kernel for Hopper")
        return
    monkeypatch.setattr(
        gluon_attention, "attention_kernel", Emulated(gluon_attention.attention_kernel)
    )


def drawn(
    num_queries: int, num_keys: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, and k and v as views of pages' rows; keys have a mean that is larger than what differs."""
    q = 2 * torch.randn(2, num_queries, DIM, device=device)
    k, v = (torch.randn(num_keys, 2, DIM, device=device) for _ in range(2))
    k += 3 * torch.randn(2, DIM, device=device)
    return q.bfloat16(), k.bfloat16().transpose(0, 1), v.bfloat16().transpose(0, 1)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = q.double() @ k.double().transpose(1, 2) * DIM**-0.5
    return scores.softmax(-1) @ v.double(), scores.logsumexp(-1)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(128, 128), (256, 832)])
def test_it_attends_as_plain_pytorch_does(
    num_queries: int, num_keys: int, device: torch.device
) -> None:
    q, k, v = drawn(num_queries, num_keys, device)
    attended = int8_attention.attend(q, k, v)
    assert attended[0].dtype is torch.bfloat16
    out, log_sums = joined(*attended)
    expected, expected_sums = reference(q, k, v)
    assert relative_error(out, expected) < 0.03
    assert (log_sums - expected_sums).abs().max() < 0.05


def test_weights_of_rounded_numbers_are_exact(device: torch.device) -> None:
    q, k, v = drawn(128, 3 * TILE, device)
    out, log_sums = joined(*int8_attention.attend(q, k, v))
    k8, k_scales, mean = quantise_keys(k, TILE)
    q8, q_scales, biases = quantise_queries(q, mean)
    scale = q_scales[:, :, None] * k_scales.repeat_interleave(TILE, 1)[:, None]
    scores = q8.double() @ k8.double().transpose(1, 2) * scale / LOG2_E.value
    assert relative_error(out, scores.softmax(-1) @ v.double()) < 5e-3
    assert (log_sums - biases - scores.logsumexp(-1)).abs().max() < 1e-4


def test_rounded_numbers_are_within_half_a_step(device: torch.device) -> None:
    q, k, _ = drawn(128, 2 * TILE, device)
    k8, scales, mean = quantise_keys(k, TILE)
    steps = scales.repeat_interleave(TILE, 1)[..., None]
    assert ((k8 * steps + mean[:, None] - k.float()).abs() <= 0.501 * steps).all()
    assert (k8.view(2, 2, -1).short().abs().amax(-1) == 127).all()
    q8, q_scales, _ = quantise_queries(q, mean)
    assert (q8.short().abs().amax(-1) == 127).all()
    q_steps = q_scales[..., None] / (LOG2_E.value * DIM**-0.5)
    assert ((q8 * q_steps - q.float()).abs() <= 0.501 * q_steps).all()
