"""Sampling against published vectors, transformers' processors and plain statistics."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.batch import Binding, Sampled
from engine.kernels.sampling.philox import gumbel_noise, philox
from engine.kernels.sampling.torch_sampling import threshold
from engine.sampling.sampler import Sampler
from engine.sampling.sampling_tables import Bound
from engine.step import SampleRow
from transport.wire.sampling import SamplingParams, StopRule

NUM_IDS = 50
CPU = torch.device("cpu")
KAT = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KAT)
def test_philox_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    """Random123's kat_vectors, philox4x32 with 10 rounds."""
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    words = philox((c0, c1, c2, c3), (torch.tensor([key[0]]), torch.tensor([key[1]])))
    assert [int(word) for word in words] == expected


def test_noise_is_gumbel_and_finite() -> None:
    noise = gumbel_noise(torch.arange(8), torch.full((8,), 2**33 + 5), 50_000)
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)


def test_noise_depends_on_seed_and_position_alone() -> None:
    seeds, positions = torch.tensor([7, 7, 8, -1]), torch.tensor([3, 4, 3, 3])
    noise = gumbel_noise(seeds, positions, 1001)
    for row in range(4):
        alone = gumbel_noise(seeds[row : row + 1], positions[row : row + 1], 1001)
        assert torch.equal(noise[row], alone[0])
    assert len({float(row[0]) for row in noise}) == 4


def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    *,
    prompt: tuple[int, ...] = (1, 2),
    output: tuple[int, ...] = (),
    stop: StopRule = StopRule(max_tokens=9),  # noqa: B008 - frozen
    position: int | None = None,
    sampler: Sampler | None = None,
) -> list[Sampled]:
    rows = len(params)
    sampler = sampler or Sampler(rows, logits.shape[1], CPU)
    for slot, one in enumerate(params):
        sampler.bind(Binding(slot, prompt, output, one, stop))
    at = len(prompt) + len(output) if position is None else position
    return sampler.sample(
        logits,
        torch.arange(rows),
        torch.full((rows,), at),
        [SampleRow(slot, at) for slot in range(rows)],
    ).to_host()


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(1, NUM_IDS)
    logits[0, [7, 30]] = 5.0
    assert sample(logits, [SamplingParams(temperature=0.0)])[0].token_id == 7


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    """Chi-square over 8 ids, 20,000 seeds; the 99.9 % quantile at 7 degrees is 24.3."""
    n = 20_000
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -2.0, 0.2])
    params = [SamplingParams(temperature=temperature, seed=i * 2654435761) for i in range(n)]
    drawn = [s.token_id for s in sample(logits.expand(n, 8), params)]
    counts = torch.tensor(drawn).bincount(minlength=8)
    expected = (logits / temperature).softmax(-1) * n
    assert ((counts - expected) ** 2 / expected).sum() < 24.3


@settings(max_examples=60, deadline=None)
@given(
    top_k=st.integers(0, NUM_IDS + 5),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.99),
    seed=st.integers(0, 1000),
)
def test_filters_keep_what_those_of_transformers_keep_in_our_order(
    top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    logits = torch.randn(3, NUM_IDS, generator=torch.Generator().manual_seed(seed)) * 2
    expected = logits
    ids = torch.zeros(3, 1, dtype=torch.long)
    if min_p:
        expected = MinPLogitsWarper(min_p)(ids, expected)
    likely = expected
    if top_k:
        expected = TopKLogitsWarper(top_k)(ids, expected)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(ids, expected)
    one = torch.ones(3)
    for short in {False, 0 < top_k <= 64}:
        lowest = threshold(logits, torch.full((3,), top_k), one * top_p, one * min_p, short=short)
        kept = logits >= lowest.unsqueeze(1)
        boundary = (kept != expected.isfinite()).sum()
        assert boundary <= 3 if _is_close_call(likely, top_k, top_p) else boundary == 0


def _is_close_call(logits: torch.Tensor, top_k: int, top_p: float) -> bool:
    """Whether top_p falls within rounding of a cumulative share."""
    best = logits.sort(descending=True).values[:, : top_k or NUM_IDS]
    shares = best.double().softmax(-1).cumsum(-1)
    return bool(((shares - top_p).abs() < 1e-5).any())


def test_top_p_shares_out_what_min_p_keeps() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.1, 0.1]]).log()
    half, most = torch.tensor([0.5]), torch.tensor([0.6])
    lowest = threshold(logits, torch.tensor([4]), most, half, short=True)
    assert (logits >= lowest).tolist() == [[True, False, False, False]]


def test_ties_at_the_threshold_are_all_kept() -> None:
    logits = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
    lowest = threshold(logits, torch.tensor([2]), torch.ones(1), torch.zeros(1), short=True)
    assert (logits >= lowest).tolist() == [[True, True, True, True, False]]


def test_sampled_ids_stay_within_the_filters() -> None:
    n = 400
    logits = torch.randn(NUM_IDS).expand(n, -1)
    best = logits[0].topk(3).indices.tolist()
    params = [SamplingParams(top_k=3, seed=i) for i in range(n)]
    assert {s.token_id for s in sample(logits, params)} == set(best)
    narrow = [SamplingParams(top_p=1e-6, seed=i) for i in range(n)]
    assert {s.token_id for s in sample(logits, narrow)} == {best[0]}


def test_repetition_penalty_is_transformers() -> None:
    logits = torch.randn(1, NUM_IDS)
    prompt, output = (3, 4, 5, 3), (6, 6, 7)
    processor = RepetitionPenaltyLogitsProcessor(1.7)
    expected = processor(torch.tensor([prompt + output]), logits.clone())
    got = _penalised_logits(logits, SamplingParams(repetition_penalty=1.7), prompt, output)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_presence_and_frequency_count_the_output_alone() -> None:
    logits = torch.randn(1, NUM_IDS)
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    got = _penalised_logits(logits, params, (3, 4), (6, 6, 7))
    expected = logits.clone()
    expected[0, 6] -= 0.5 + 2 * 0.25
    expected[0, 7] -= 0.5 + 0.25
    torch.testing.assert_close(got, expected)


def test_penalties_come_after_bias_and_masked_stops() -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias={3: 8.0, 4: 50.0})
    stop = StopRule(max_tokens=9, min_tokens=9, stop_token_ids=(4,))
    got = _penalised_logits(torch.ones(1, NUM_IDS), params, (3, 4), (), stop)
    assert got[0, 3:6].tolist() == [4.5, -math.inf, 1.0]


def _penalised_logits(
    logits: torch.Tensor,
    params: SamplingParams,
    prompt: tuple[int, ...],
    output: tuple[int, ...],
    stop: StopRule = StopRule(max_tokens=9),  # noqa: B008 - frozen
) -> torch.Tensor:
    sampler = Sampler(1, NUM_IDS, CPU)
    binding = Binding(0, prompt, output, params, stop)
    sampler.bind(binding)
    at = len(prompt) + len(output)
    return sampler.adjusted(logits, torch.tensor([0]), torch.tensor([at]), [SampleRow(0, at)])


def test_a_prompt_is_not_kept_beyond_what_needs_it() -> None:
    sampler = Sampler(1, NUM_IDS, CPU)
    stop = StopRule(max_tokens=9)
    sampler.bind(Binding(0, (3, 4), (5,), SamplingParams(), stop))
    assert sampler.tables.bound[0] == Bound(2, SamplingParams(), stop)


def test_sampler_counts_its_own_tokens() -> None:
    """The second token of a slot sees the first one's penalty without the host's help."""
    sampler = Sampler(2, NUM_IDS, CPU)
    params = SamplingParams(temperature=0.0, presence_penalty=2.0)
    logits = torch.zeros(1, NUM_IDS)
    logits[0, 5], logits[0, 9] = 3.0, 2.0
    sampler.bind(Binding(1, (1,), (), params, StopRule(max_tokens=9)))
    tokens = []
    for position in (1, 2, 3):
        draw = sampler.sample(
            logits, torch.tensor([1]), torch.tensor([position]), [SampleRow(1, position)]
        )
        tokens.append(draw.to_host()[0].token_id)
    assert tokens == [5, 9, 5]
    assert sampler.next_token[1] == 5


def test_bias_and_min_tokens() -> None:
    logits = torch.zeros(1, NUM_IDS)
    logits[0, 5], logits[0, 9] = 3.0, 2.0
    greedy = SamplingParams(temperature=0.0)
    stop = StopRule(max_tokens=9, min_tokens=2, stop_token_ids=(5, 10**9))
    assert sample(logits, [greedy], stop=stop, position=3)[0].token_id == 9
    assert sample(logits, [greedy], stop=stop, position=4)[0].token_id == 5
    biased = SamplingParams(temperature=0.0, logit_bias={20: 50.0, 10**9: 100.0})
    sampler = Sampler(1, NUM_IDS, CPU)
    assert sample(logits, [biased], sampler=sampler)[0].token_id == 20
    assert sample(logits, [greedy], sampler=sampler)[0].token_id == 5


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = torch.randn(2, NUM_IDS)
    params = [
        SamplingParams(temperature=0.3, logprobs=3, logit_bias={8: 100.0}),
        SamplingParams(temperature=0.0),
    ]
    first, second = sample(logits, params)
    expected = logits[0].log_softmax(-1)
    assert second.logprobs is None
    assert first.token_id == 8
    assert first.logprobs is not None
    assert first.logprobs.chosen == pytest.approx(float(expected[8]), abs=1e-6)
    assert [i for i, _ in first.logprobs.top] == expected.topk(3).indices.tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_rows_that_are_not_finite_give_no_token(bad: float) -> None:
    logits = torch.randn(3, NUM_IDS)
    logits[1, 30] = bad
    params = [SamplingParams(), SamplingParams(temperature=0.0), SamplingParams()]
    outcomes = sample(logits, params)
    assert outcomes[1] == Sampled(None)
    assert all(outcome.token_id is not None for outcome in (outcomes[0], outcomes[2]))


def test_a_token_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(7, 2000) * 3
    params = [
        SamplingParams(seed=1),
        SamplingParams(temperature=0.0),
        SamplingParams(seed=2**64 - 3, top_k=20, top_p=0.9),
        SamplingParams(seed=3, top_p=0.8, min_p=0.01),
        SamplingParams(seed=4, top_k=500),
        SamplingParams(seed=5, repetition_penalty=1.2, top_k=50),
        SamplingParams(seed=6, logit_bias={4: 3.0}, logprobs=2),
    ]
    together = sample(logits, params)
    for row, one in enumerate(params):
        assert sample(logits[row : row + 1], [one])[0] == together[row]
