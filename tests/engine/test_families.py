"""Every model family computes what transformers computes: float32, token for token."""

import random
from functools import cache

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig
from engine.model_folder import read_model
from engine.runner import Engine
from tests.engine.driver import GREEDY, UNLIMITED, Driver, Request, load_engine
from tests.engine.families import SHAPES, family_checkpoint, reference
from transport.copy.pull import copy_sequence

NUM_TOKENS = 24
LENGTHS = (1, 63, 65, 64 * 2 + 17)


def prompt(length: int) -> tuple[int, ...]:
    draw = random.Random(length)
    return tuple(draw.randrange(260) for _ in range(length))


@cache
@torch.inference_mode()
def truth(name: str, length: int) -> list[int]:
    """The greedy tokens of transformers, each from a pass over the whole text."""
    text = list(prompt(length))
    for _ in range(NUM_TOKENS):
        logits = reference(name)(torch.tensor([text]), use_cache=False).logits
        text.append(int(logits[0, -1].argmax()))
    return text[length:]


@pytest.mark.parametrize("name", SHAPES)
def test_alone_and_chunked(name: str) -> None:
    engine = load_engine(family_checkpoint(name))
    for length in LENGTHS:
        request = Request(prompt(length), NUM_TOKENS)
        Driver(engine, budget=64).run([request])
        assert request.tokens == truth(name, length)


@pytest.mark.parametrize("name", SHAPES)
def test_mixed_batch(name: str) -> None:
    requests = [Request(prompt(length), NUM_TOKENS) for length in LENGTHS * 2]
    Driver(load_engine(family_checkpoint(name)), budget=192).run(requests)
    for request in requests:
        assert request.tokens == truth(name, len(request.prompt))


@pytest.mark.parametrize("name", SHAPES)
def test_handoff_to_another_engine(name: str) -> None:
    prefill, decode = (load_engine(family_checkpoint(name)) for _ in range(2))
    for length in LENGTHS:
        ids = prompt(length)
        num_pages = prefill.layout.pages_for(length + NUM_TOKENS)
        there, here = tuple(range(num_pages)), tuple(range(100, 100 + num_pages))
        prefill.bind(Binding(3, ids, (), GREEDY, UNLIMITED))
        tokens = [_sampled(prefill, Row(3, there, 0, ids))]
        filled = prefill.layout.pages_for(length)
        copy_sequence(prefill.cache, there[:filled], 3, decode.cache, here[:filled], 7)
        decode.bind(Binding(7, ids, tuple(tokens), GREEDY, UNLIMITED))
        while len(tokens) < NUM_TOKENS:
            tokens.append(_sampled(decode, Row(7, here, length + len(tokens) - 1, None)))
        assert tokens == truth(name, length)


def test_a_gpu_is_refused_before_anything_is_read() -> None:
    config = EngineConfig(
        model_dir=family_checkpoint("qwen3"), num_pages=8, num_state_slots=2, device="cuda"
    )
    with pytest.raises(ValueError, match="device: models of type qwen3 run on CPUs only"):
        read_model(config)


def _sampled(engine: Engine, row: Row) -> int:
    [[outcome]] = engine.launch(ForwardBatch((row,))).result().sampled
    assert outcome.token_id is not None
    return outcome.token_id
