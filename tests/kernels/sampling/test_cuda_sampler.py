"""The sampler for CUDA chooses what the CPU's does, whatever rows stand beside each other."""

from pathlib import Path

import pytest
import torch
from llguidance import LLMatcher

from engine.batch import Binding, Sampled
from engine.kernels.sampling import torch_sampling
from engine.sampling import cuda_sampler
from engine.sampling.cuda_sampler import CudaSampler, num_logits
from engine.sampling.grammars import Grammars
from engine.sampling.sampler import Sampler
from engine.step import SampleRow
from tests.kernels.sets import cuda_path
from transport.wire.sampling import Constraint, SamplingParams, StopRule

NUM_IDS = 701
SHORT = [
    SamplingParams(top_k=20, top_p=0.95, seed=1),
    SamplingParams(temperature=0.6, top_k=1, seed=2),
    SamplingParams(temperature=1.7, top_k=64, min_p=0.2, seed=3),
]
PLAIN = [SamplingParams(seed=4), SamplingParams(temperature=0.0, top_k=20)]
LONG = [SamplingParams(top_p=0.5, seed=5), SamplingParams(top_k=65, min_p=0.01, seed=6)]
ADJUSTED = [SamplingParams(top_k=5, presence_penalty=9.0, logit_bias={7: 3.0}, seed=7)]


@pytest.fixture(autouse=True)
def _no_pinned_memory_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        cuda_path.without_pinned_memory(monkeypatch)


def chosen(sampler: Sampler, logits: torch.Tensor, params: list[SamplingParams]) -> list[Sampled]:
    device = sampler.next_token.device
    for slot, one in enumerate(params):
        sampler.bind(Binding(slot, (1, 2), () if one.constraint else (3,), one, StopRule(9)))
    slots, positions = torch.arange(len(params)), torch.arange(len(params)) + 3
    rows = [SampleRow(slot, slot + 3) for slot in range(len(params))]
    return sampler.sample(logits.to(device), slots.to(device), positions.to(device), rows).to_host()


@pytest.mark.parametrize("params", [SHORT, SHORT + PLAIN, SHORT + PLAIN + LONG, SHORT + ADJUSTED])
def test_the_same_tokens(params: list[SamplingParams], device: torch.device) -> None:
    logits = torch.randn(len(params), num_logits(NUM_IDS, 800)).bfloat16().float() * 3
    logits[:, NUM_IDS:] = float("nan")
    expected = Sampler(len(params), NUM_IDS, torch.device("cpu"))
    valid = logits[:, :NUM_IDS]
    found = chosen(CudaSampler(len(params), NUM_IDS, device), logits, params)
    assert found == chosen(expected, valid, params)


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_the_same_in_blocks_of_rows(
    at_once: int, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    params = SHORT + PLAIN + ADJUSTED + LONG + [SamplingParams(seed=8, logprobs=3), *PLAIN]
    logits = torch.randn(len(params), num_logits(NUM_IDS, 800)) * 3
    logits[4, 5] = float("nan")
    whole = chosen(CudaSampler(len(params), NUM_IDS, device), logits.clone(), params)
    monkeypatch.setattr(cuda_sampler, "SAMPLED_AT_ONCE", at_once)
    sampler = CudaSampler(len(params), NUM_IDS, device)
    assert chosen(sampler, logits, params) == whole
    assert [one.token_id is None for one in whole] == [row == 4 for row in range(len(params))]
    fed = sampler.next_token.tolist()
    assert all(one.token_id in (None, fed[row]) for row, one in enumerate(whole))


def test_rows_that_take_no_temporaries_are_sampled_at_once(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr(cuda_sampler, "SAMPLED_AT_ONCE", 0)
    params = SHORT + PLAIN
    logits = torch.randn(len(params), num_logits(NUM_IDS, 800))
    found = chosen(CudaSampler(len(params), NUM_IDS, device), logits, params)
    assert all(one.token_id is not None for one in found)


def test_no_filter_needs_a_sort(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.delattr(torch_sampling, "threshold")
    params = SHORT + PLAIN + LONG
    logits = torch.randn(len(params), num_logits(NUM_IDS, 800))
    found = chosen(CudaSampler(len(params), NUM_IDS, device), logits, params)
    assert all(one.token_id is not None for one in found)


def test_the_same_tokens_of_constrained_rows(device: torch.device) -> None:
    folder = Path("models/tiny")
    grammars = Grammars(folder, 1_306, [1_282])
    constraint = Constraint(LLMatcher.grammar_from_regex(r"[a-z]{3,9} [0-9]+"))
    params = [
        SamplingParams(seed=1, constraint=constraint),
        SamplingParams(seed=2),
        SamplingParams(seed=3, top_k=5, constraint=constraint),
        SamplingParams(temperature=0.0, logprobs=2, constraint=constraint),
    ]
    logits = torch.randn(len(params), num_logits(1_306, 1_400)) * 3
    valid = logits[:, :1_306].clone()
    reference = Sampler(len(params), 1_306, torch.device("cpu"), grammars=grammars)
    sampler = CudaSampler(len(params), 1_306, device, grammars)
    found, expected = chosen(sampler, logits, params), chosen(reference, valid, params)
    assert [one.token_id for one in found] == [one.token_id for one in expected]
    assert found[3].logprobs is not None
    assert expected[3].logprobs is not None
    assert found[3].logprobs.chosen == pytest.approx(expected[3].logprobs.chosen, abs=1e-5)
