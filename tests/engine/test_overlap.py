"""A prompt that is computed beside decode steps, in parts: what the CPU can show of it."""

import random

import pytest

from engine.batch import ForwardBatch, Row
from engine.kernels.reference import ReferenceKernels
from engine.overlap import Overlap
from tests.engine.checkpoints import checkpoint, with_draft_layer
from tests.engine.driver import load_engine
from tests.engine.families import family_checkpoint
from tests.engine.overlapped import generate


@pytest.mark.parametrize("max_drafts", [0, 2])
def test_tokens_are_those_of_a_prompt_before_the_steps(max_drafts: int) -> None:
    draw = random.Random(3)
    prompts = [tuple(draw.choices(range(250), k=length)) for length in (9, 40, 70)]
    folder = with_draft_layer("per_expert") if max_drafts else checkpoint("per_expert")
    engine = load_engine(folder, load_format="dummy", max_drafts=max_drafts)
    engine.overlap = Overlap(None)
    before = generate(engine, prompts[:2], prompts[2], beside=False)
    assert generate(engine, prompts[:2], prompts[2], beside=True) == before


def test_window_pages_beside_steps() -> None:
    """The prompt is longer than the ring of its slot."""
    draw = random.Random(3)
    prompts = [tuple(draw.choices(range(250), k=length)) for length in (70, 130, 700)]
    engine = load_engine(family_checkpoint("gemma3_text"), kernels=ReferenceKernels())
    engine.overlap = Overlap(None)
    before = generate(engine, prompts[:2], prompts[2], beside=False)
    assert generate(engine, prompts[:2], prompts[2], beside=True) == before


def test_a_cpu_is_not_divided() -> None:
    with pytest.raises(ValueError, match=r"^overlap: on divides a GPU, and the device is cpu"):
        load_engine(checkpoint("per_expert"), load_format="dummy", overlap="on")
    engine = load_engine(checkpoint("per_expert"), load_format="dummy", overlap="auto")
    assert engine.overlap is None


def test_its_layers_are_enqueued_a_few_at_a_time() -> None:
    engine = load_engine(checkpoint("per_expert"), load_format="dummy")
    engine.overlap = Overlap(None)
    num_layers = len(engine.model_config.layers)
    batch = engine.overlapped(ForwardBatch((Row(0, range(4), 0, (1,) * 64, sample=False),)), 0)
    assert num_layers > 2
    batch.enqueue(most_ahead=2)
    for _ in range(num_layers - 2):
        assert not batch.enqueued
        batch.enqueue(most_s=0.0)
    assert not batch.done, "all layers but not the end"
    batch.enqueue(most_s=0.0)
    assert batch.done
    assert batch.took_s is not None
    assert batch.result().sampled == ((),)
