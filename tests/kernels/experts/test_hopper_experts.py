"""Experts in FP8 on Hopper: the kernels' own source on a CPU, or the kernels on such a GPU."""

import pytest
import torch

from engine.gpu_arch import HOPPER
from engine.kernels.experts import gluon_down, gluon_gate_up, hopper_experts
from engine.kernels.experts.hopper_experts import experts_hopper, suits
from engine.kernels.experts.triton_experts_fp8 import experts_fp8
from engine.kernels.triton_arch import arch_of
from engine.model.matrix import Matrix
from tests.kernels.closeness import relative_error
from tests.kernels.gluon_threads import Emulated

NUM_EXPERTS, TOP_K, HIDDEN, DIM = 6, 2, 512, 256
CLOSE = 6e-3
"""In the interpreter, which truncates bfloat16 where the others round; 1.3e-3 on a GPU."""


@pytest.fixture(autouse=True)
def _emulated(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type == "cuda":
        if arch_of(torch.empty(0, device=device)) != HOPPER:
            pytest.skip("kernels for Hopper")
        return
    for module, name in ((gluon_gate_up, "gate_up_kernel"), (gluon_down, "down_kernel")):
        monkeypatch.setattr(module, name, Emulated(getattr(module, name)))
    monkeypatch.setattr(hopper_experts, "multiprocessors", lambda _: 5)


def drawn(device: torch.device) -> tuple[Matrix, Matrix]:
    """gate_up and down, whose blocks have different sizes."""
    shapes = (NUM_EXPERTS, 2 * DIM, HIDDEN), (NUM_EXPERTS, HIDDEN, DIM)
    sizes = (torch.logspace(-1, 1, rows, device=device)[:, None] for _, rows, _ in shapes)
    rows = (
        torch.randn(shape, device=device) * shape[2] ** -0.5 * size
        for shape, size in zip(shapes, sizes, strict=True)
    )
    gate_up, down = (Matrix.converted(each.bfloat16()) for each in rows)
    return gate_up, down


@pytest.mark.parametrize(
    "counts",
    [
        (1, 0, 64, 65, 0, 2),
        (193, 128, 191, 0, 66, 64),
        (0, 0, 400, 0, 0, 0),
        (0, 0, 0, 0, 0, 0),
    ],
)
def test_results_are_those_of_the_other_kernels(
    counts: tuple[int, ...], device: torch.device
) -> None:
    """With full tiles and some with one group's pairs, and experts without any."""
    num_tokens = max(1, sum(counts))
    first = torch.arange(NUM_EXPERTS).repeat_interleave(torch.tensor(counts))
    ids = torch.full((num_tokens, TOP_K), -1, dtype=torch.int32)
    ids[: len(first), 0] = first[torch.randperm(len(first))]
    ids = ids.to(device)
    x = torch.randn(num_tokens, HIDDEN, device=device).bfloat16()
    weights = torch.rand(num_tokens, TOP_K, device=device)
    gate_up, down = drawn(device)
    y = experts_hopper(x, ids, weights, gate_up, down)
    expected = experts_fp8(x, ids, weights, gate_up, down)
    chosen = ids.t() >= 0
    assert y.shape == (TOP_K, num_tokens, HIDDEN)
    assert y.isfinite()[chosen].all()
    if chosen.any():
        assert relative_error(y[chosen], expected[chosen]) < CLOSE


def test_what_it_computes(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_experts, "arch_of", lambda _: HOPPER)
    gate_up, down = drawn(torch.device("cpu"))
    x = torch.zeros(600, HIDDEN, dtype=torch.bfloat16)
    assert suits(x, gate_up, down)
    assert not suits(x.float(), gate_up, down)
    assert not suits(x[:, :384], gate_up, down)
    wide = torch.zeros(1, HIDDEN, 640, dtype=torch.bfloat16)
    assert not suits(x, gate_up, Matrix.converted(wide))
    monkeypatch.setattr(hopper_experts, "arch_of", lambda _: 100)
    assert not suits(x, gate_up, down)
