"""The sampler for CUDA chooses what the CPU's does, whatever rows stand beside each other."""

import pytest
import torch

from engine import cuda_sampler
from engine.batch import Binding, Sampled
from engine.cuda_sampler import CudaSampler, num_logits
from engine.kernels import torch_sampling
from engine.sampler import Sampler, SampleRow
from transport.wire.sampling import SamplingParams, StopRule

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
def _no_copies_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr(cuda_sampler, "_copied", lambda drawn: drawn)


def chosen(sampler: Sampler, logits: torch.Tensor, params: list[SamplingParams]) -> list[Sampled]:
    device = sampler.next_token.device
    for slot, one in enumerate(params):
        sampler.bind(Binding(slot, (1, 2), (3,), one, StopRule(9)))
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


def test_short_filters_need_no_sort(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.delattr(torch_sampling, "threshold")
    params = SHORT + PLAIN
    logits = torch.randn(len(params), num_logits(NUM_IDS, 800))
    found = chosen(CudaSampler(len(params), NUM_IDS, device), logits, params)
    assert all(one.token_id is not None for one in found)
