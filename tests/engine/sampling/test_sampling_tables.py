"""Tables of what requests ask of sampling: their memory, and when stop ids are masked."""

import torch

from engine.batch import Binding
from engine.sampling.sampler import Sampler
from engine.sampling.sampling_tables import Bound, SamplingTables
from engine.step import SampleRow
from transport.wire.sampling import SamplingParams, StopRule

NUM_IDS = 50
CPU = torch.device("cpu")
SLOT = torch.tensor([0])


def bound(params: SamplingParams, stop: StopRule) -> Sampler:
    sampler = Sampler(2, NUM_IDS, CPU)
    sampler.bind(Binding(0, (1, 2, 2), (4, 4, 5), params, stop))
    return sampler


def test_no_table_of_ids_exists_before_a_sequence_needs_it() -> None:
    sampler = bound(SamplingParams(temperature=0.7), StopRule(max_tokens=9))
    logits = torch.randn(1, NUM_IDS)
    sampler.guess(logits, SLOT, torch.tensor([6]))
    sampler.sample(logits, SLOT, torch.tensor([6]), [SampleRow(0, 6)])
    assert sampler.tables.counts.values is None
    assert sampler.tables.in_prompt.values is None


def test_penalties_know_the_prompt_and_count_the_output() -> None:
    tables = bound(SamplingParams(presence_penalty=0.5), StopRule(max_tokens=9)).tables
    counts, in_prompt = tables.counts.values, tables.in_prompt.values
    assert counts is not None
    assert in_prompt is not None
    assert in_prompt.nonzero().tolist() == [[0, 1], [0, 2]]
    assert {(i, int(counts[0, i])) for _, i in counts.nonzero().tolist()} == {(4, 2), (5, 1)}


def test_the_host_and_the_device_mask_stops_at_the_same_positions() -> None:
    stop = StopRule(max_tokens=9, min_tokens=3, stop_token_ids=(7,))
    tables = SamplingTables(2, NUM_IDS, NUM_IDS, CPU)
    for slot, (num_prompt, rule) in enumerate([(2, stop), (4, StopRule(max_tokens=9))]):
        tables.bind(Binding(slot, (1,) * num_prompt, (), SamplingParams(), rule))
        for position in range(num_prompt, num_prompt + 6):
            one = torch.tensor([slot]), torch.tensor([position])
            found = tables.without_early_stops(torch.zeros(1, NUM_IDS), *one).isinf().nonzero()
            expected = [[0, 7]] if tables.bound[slot].masks_stops(position) else []
            assert found.tolist() == expected
            assert tables.bound[slot].masks_stops(position) == (not slot and position < 5)


def test_a_slot_is_adjusted_while_its_settings_ask_for_it() -> None:
    plain, biased = SamplingParams(top_k=3), SamplingParams(logit_bias={3: 1.0})
    early = StopRule(max_tokens=9, min_tokens=2, stop_token_ids=(7,))
    assert not Bound(2, plain, StopRule(max_tokens=9)).adjusts(2)
    assert Bound(2, biased, StopRule(max_tokens=9)).adjusts(2)
    assert [Bound(2, plain, early).adjusts(position) for position in (2, 3, 4)] == [
        True, True, False,
    ]  # fmt: skip
