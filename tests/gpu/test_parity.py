"""The Triton engine against transformers in float32: reduced depth, the real model's widths."""

from pathlib import Path

import pytest
import torch

from tests.gpu import references
from tests.gpu.teacher_forced import (
    MARGIN,
    Forced,
    alone_and_among,
    four_layers,
    kl,
    teacher_forced,
    whole_and_in_chunks,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

PROMPT_LENS = (1, 63, 64, 65, 1000, 8192)
NUM_DECODED = 256
MAX_KL = 0.0025


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers (three DeltaNet, one attention) at full width, in bfloat16."""
    folder = tmp_path_factory.mktemp("checkpoint")
    references.save_random(four_layers()["text_config"], folder)
    return folder


@pytest.fixture
def ours(forced: Forced, texts: list[list[int]]) -> list[torch.Tensor]:
    """Our logits at the same positions."""
    return teacher_forced(forced, texts, NUM_DECODED)


def test_teacher_forced_logits(ours: list[torch.Tensor], reference: list[torch.Tensor]) -> None:
    found = torch.cat([kl(theirs, own) for theirs, own in zip(reference, ours, strict=True)])
    print(f"{len(found)} positions, mean KL {found.mean():.6f}, largest {found.max():.6f}")
    assert found.mean() <= MAX_KL


@pytest.mark.xfail(
    reason="a near-tie of the router falls differently in bfloat16 at 7 of 1,000 positions; "
    "transformers' own bfloat16 run differs from its float32 one at 13"
)
def test_top1_wherever_the_margin_is_clear(
    ours: list[torch.Tensor], reference: list[torch.Tensor]
) -> None:
    best = torch.cat([theirs.topk(2).values for theirs in reference])
    clear = best[:, 0] - best[:, 1] > MARGIN
    same = torch.cat(
        [t.argmax(-1) == own.argmax(-1) for t, own in zip(reference, ours, strict=True)]
    )
    print(f"the same top-1 at {int(same[clear].sum())} of {int(clear.sum())} clear positions")
    assert same[clear].all()


def test_a_prompt_in_chunks_equals_the_prompt_in_one_piece(
    forced: Forced, texts: list[list[int]]
) -> None:
    whole, parts = whole_and_in_chunks(forced, texts[4][:1000], len(PROMPT_LENS))
    print(f"largest difference {(whole - parts).abs().max():.6f}")
    assert kl(whole, parts).item() <= MAX_KL
    assert whole.argmax() == parts.argmax()


def test_a_decode_row_does_not_depend_on_its_batch(forced: Forced, texts: list[list[int]]) -> None:
    """Alone and among others: the same bits, from the same state."""
    prompt = texts[PROMPT_LENS.index(65)][:65]
    alone, among = alone_and_among(forced, prompt, texts)
    print(f"largest difference {(alone - among).abs().max():.6f}")
    assert torch.equal(alone, among)
