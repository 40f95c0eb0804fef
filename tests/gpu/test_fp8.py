"""FP8 weights on the GPU against float32 of the same weights: reduced depth, the real widths."""

import json
from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from engine.batch import Row
from engine.kernels.attention.int8_attention import INT8
from engine.kernels.dense.triton_large_linear import large_linear
from engine.kernels.triton_set import TritonKernels
from engine.model.matrix import Matrix
from engine.runner import Engine
from tests.gpu import references
from tests.gpu.teacher_forced import (
    MARGIN,
    VOCAB,
    Forced,
    alone_and_among,
    four_layers,
    kl,
    pages,
    teacher_forced,
)
from tests.kernels.closeness import relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

PROMPT_LENS = (1, 65, 600, 3000)
NUM_DECODED = 128
NUM_SLOTS = len(PROMPT_LENS) + 2
MAX_KL = 0.02
MIN_SAME_TOP1 = 0.97
MAX_KL_OF_INT8 = 0.001


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(four_layers()))
    return references.drawn(folder, NUM_SLOTS, "bfloat16", "fp8")


def copy_weights(source: object, into: object) -> None:
    if isinstance(source, torch.Tensor):
        assert isinstance(into, torch.Tensor)
        into.copy_(source)
    elif isinstance(source, tuple):
        assert isinstance(into, tuple)
        for a, b in zip(source, into, strict=True):
            copy_weights(a, b)
    elif is_dataclass(source):
        for field in fields(source):
            copy_weights(getattr(source, field.name), getattr(into, field.name))


@pytest.fixture(scope="module")
def reference(engine: Engine, texts: list[list[int]]) -> list[torch.Tensor]:
    """float32 logits of the same weights at the positions that our engine samples."""
    twin = references.drawn(engine.config.model_dir, NUM_SLOTS, "float32", "fp8")
    with torch.inference_mode():
        copy_weights(engine._model.weights, twin._model.weights)
    found = references.of_engine(twin, texts, PROMPT_LENS)
    del twin
    torch.cuda.empty_cache()
    return found


def test_teacher_forced_logits(
    forced: Forced, texts: list[list[int]], reference: list[torch.Tensor]
) -> None:
    ours = teacher_forced(forced, texts, NUM_DECODED)
    clear = same = 0
    kls = []
    for length, theirs, rows in zip(PROMPT_LENS, reference, ours, strict=True):
        own = rows[:, : theirs.shape[1]]
        kls.append(kl(theirs, own))
        best = theirs.topk(2).values
        margin = best[:, 0] - best[:, 1] > MARGIN
        clear += int(margin.sum())
        same += int((theirs.argmax(-1) == own.argmax(-1))[margin].sum())
        print(f"prompt of {length}: first KL {kls[-1][0]:.5f}, mean {kls[-1].mean():.5f}")
    mean = torch.cat(kls).mean()
    print(f"mean KL {mean:.5f}; the same top-1 at {same} of {clear} clear positions")
    assert mean <= MAX_KL
    assert same >= MIN_SAME_TOP1 * clear


def test_attention_to_cached_tokens_in_int8(
    forced: Forced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adds little to what weights in FP8 change."""
    engine, num_cached = forced.engine, 6_000
    kernels = engine._kernels
    assert isinstance(kernels, TritonKernels)
    if kernels.unmasked is not INT8:
        pytest.skip("kernels for Hopper")
    text = torch.randint(0, VOCAB, (8_000,), generator=torch.Generator().manual_seed(3)).tolist()
    cut = replace(INT8.cut, least_cached=num_cached)
    monkeypatch.setattr(kernels, "unmasked", replace(INT8, cut=cut))
    found = []
    for slot, problem in enumerate(("", "not here")):
        monkeypatch.setattr(kernels, "pieces_problem", problem)
        forced.bind(slot, text)
        forced.prefill(slot, text[:num_cached], 0, last=False)
        row = Row(slot, pages(slot), num_cached, tuple(text[num_cached:]))
        found.append(references.of_row(engine, row).float())
    apart = kl(found[1], found[0])
    print(
        f"attention to 6,000 cached tokens in int8: KL {apart.mean():.6f}, most {apart.max():.5f}"
    )
    assert apart.mean() <= MAX_KL_OF_INT8


def test_a_decode_row_does_not_depend_on_its_batch(forced: Forced, texts: list[list[int]]) -> None:
    prompt = texts[PROMPT_LENS.index(65)][:65]
    alone, among = alone_and_among(forced, prompt, texts)
    assert torch.equal(alone, among)


@pytest.mark.parametrize("num_plain", [0, 64])
@pytest.mark.parametrize("num_tokens", [65, 1001])
def test_large_products(num_tokens: int, num_plain: int) -> None:
    x = torch.randn(num_tokens, 2048, device="cuda").bfloat16()
    converted = Matrix.converted(torch.randn(2048, 2048, device="cuda").bfloat16())
    plain = torch.randn(num_plain, 2048, device="cuda").bfloat16()
    w = Matrix(converted.fp8, converted.scales, plain)
    y, truth = large_linear(x, w), x.float() @ w.dequantised().float().t()
    assert y.shape == (num_tokens, 2048 + num_plain)
    assert relative_error(y[:, :2048], truth[:, :2048]) < 0.04
    if num_plain:
        assert relative_error(y[:, 2048:], truth[:, 2048:]) < 8e-3
