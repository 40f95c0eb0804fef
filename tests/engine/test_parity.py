"""The engine computes what transformers computes: float32, token for token."""

import random
from functools import cache

import pytest
import torch

from engine.kernels.reference import ReferenceKernels
from tests.engine.checkpoints import SHAPES, checkpoint, reference
from tests.engine.driver import GREEDY, Driver, Request, load_engine
from transport.wire.sampling import SamplingParams

NUM_TOKENS = 64
LENGTHS = (1, 63, 64, 65, 64 * 5 + 17)
ALL_LOGPROBS = SamplingParams(temperature=0.0, logprobs=1 << 20)


def prompt(length: int) -> tuple[int, ...]:
    draw = random.Random(length)
    return tuple(draw.randrange(260) for _ in range(length))


@cache
def drafts(name: str) -> dict[int, list[int]]:
    """What our engine makes of the prompts, by their lengths."""
    requests = {length: Request(prompt(length), NUM_TOKENS) for length in LENGTHS}
    Driver(load_engine(checkpoint(name))).run(list(requests.values()))
    return {length: request.tokens for length, request in requests.items()}


@cache
@torch.inference_mode()
def truth(name: str, length: int) -> tuple[list[int], torch.Tensor]:
    """transformers' greedy tokens, and the log-probabilities [tokens, vocab] it chose them from.

    Our engine drafts the tokens and transformers checks them all in one pass, which costs far less
    than a pass for each; from the first that it would not have chosen on, its own choice stands.
    """
    tokens = drafts(name)[length]
    while True:
        text = torch.tensor([[*prompt(length), *tokens]])
        logprobs = reference(name)(text).logits[0, length - 1 : -1].log_softmax(-1)
        chosen = logprobs.argmax(-1).tolist()
        if chosen == tokens:
            return tokens, logprobs
        first = next(i for i in range(NUM_TOKENS) if chosen[i] != tokens[i])
        tokens = [*tokens[:first], chosen[first], *tokens[first + 1 :]]


def logprobs(request: Request, vocab_size: int) -> torch.Tensor:
    result = torch.full((len(request.outcomes), vocab_size), float("nan"))
    for row, outcome in zip(result, request.outcomes, strict=True):
        assert outcome.logprobs is not None
        ids, values = zip(*outcome.logprobs.top, strict=True)
        row[list(ids)] = torch.tensor(values)
    return result


@pytest.mark.parametrize("name", SHAPES)
def test_alone_and_chunked(name: str) -> None:
    engine = load_engine(checkpoint(name))
    for length in LENGTHS:
        request = Request(prompt(length), NUM_TOKENS, ALL_LOGPROBS)
        Driver(engine, budget=128).run([request])
        tokens, expected = truth(name, length)
        assert request.tokens == tokens
        torch.testing.assert_close(
            logprobs(request, expected.shape[1]), expected, atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("name", SHAPES)
def test_mixed_batch_of_16(name: str) -> None:
    lengths = [LENGTHS[i % len(LENGTHS)] for i in range(20)]
    random.Random(name).shuffle(lengths)
    requests = [Request(prompt(n), NUM_TOKENS, ALL_LOGPROBS) for n in lengths]
    Driver(load_engine(checkpoint(name)), budget=192).run(requests)
    for request, length in zip(requests, lengths, strict=True):
        tokens, expected = truth(name, length)
        assert request.tokens == tokens
        torch.testing.assert_close(
            logprobs(request, expected.shape[1]), expected, atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("name", SHAPES)
def test_block_by_block(name: str) -> None:
    engine = load_engine(checkpoint(name), kernels=ReferenceKernels(prefill_block=64))
    requests = [Request(prompt(n), 8, ALL_LOGPROBS) for n in LENGTHS * 2]
    Driver(engine, budget=256).run(requests)
    for request, length in zip(requests, LENGTHS * 2, strict=True):
        tokens, expected = truth(name, length)
        assert request.tokens == tokens[:8]
        got = logprobs(request, expected.shape[1])
        torch.testing.assert_close(got, expected[:8], atol=1e-4, rtol=0)


@pytest.mark.parametrize("page_size", [1, 8, 64])
def test_page_size_is_free(page_size: int) -> None:
    engine = load_engine(checkpoint("fused"), page_size=page_size, num_pages=8192 // page_size)
    requests = [Request(prompt(n), 20, GREEDY) for n in LENGTHS]
    Driver(engine).run(requests)
    for request, length in zip(requests, LENGTHS, strict=True):
        assert request.tokens == truth("fused", length)[0][:20]


@pytest.mark.parametrize("name", SHAPES)
def test_bfloat16_stays_close(name: str) -> None:
    engine = load_engine(checkpoint(name), dtype="bfloat16")
    requests = [Request(prompt(n), 1, ALL_LOGPROBS) for n in LENGTHS]
    Driver(engine).run(requests)
    expected = torch.stack([truth(name, length)[1][0] for length in LENGTHS])
    got = torch.cat([logprobs(request, expected.shape[1]) for request in requests])
    divergence = (expected.exp() * (expected - got)).sum(-1)
    assert divergence.mean() < 0.05
