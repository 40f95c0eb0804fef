"""On a real GPU: sampling takes no more memory than is kept free for it."""

import pytest
import torch

from engine import gpu
from engine.batch import Binding
from engine.config import SAMPLED_AT_ONCE
from engine.sampling.cuda_sampler import CudaSampler, num_logits
from engine.step import SampleRow
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = pytest.mark.gpu

NUM_IDS, VOCABULARY = 248_077, 248_320


@pytest.mark.parametrize("top_k", [0, 100])
def test_rows_with_penalties_long_filters_and_logprobs(top_k: int) -> None:
    device, rows = torch.device("cuda"), range(SAMPLED_AT_ONCE)
    sampler = CudaSampler(len(rows), NUM_IDS, device)
    params = SamplingParams(
        top_k=top_k, top_p=0.9, presence_penalty=1.0, logit_bias={5: 2.0}, logprobs=20
    )
    for slot in rows:
        sampler.bind(Binding(slot, (1, 2), (3,), params, StopRule(9)))
    logits = torch.randn(len(rows), num_logits(NUM_IDS, VOCABULARY), device=device)
    slots = torch.arange(len(rows), device=device)
    taken = []
    for _ in range(2):  # the first time tables are made
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        sampler.sample(logits, slots, slots + 3, [SampleRow(slot, slot + 3) for slot in rows])
        torch.cuda.synchronize()
        taken.append(torch.cuda.max_memory_allocated() - before)
    each = taken[-1] / len(rows) / NUM_IDS
    print(f"top_k {top_k}: {each:.1f} bytes for each id of a row")
    assert each < gpu.SAMPLED_BYTES
