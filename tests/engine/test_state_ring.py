"""States with a ring, in plain PyTorch: whatever of a step's tokens stays, they are those of plain
decoding."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.state_ring import StateRing
from engine.inputs import DraftRows, Rows
from engine.kernels.delta.torch_conv import conv_decode
from engine.kernels.delta.torch_delta_rule import recurrent
from engine.kernels.delta.torch_drafts import conv_drafts, recurrent_drafts

HEADS, DIM, CHANNELS, NUM_SLOTS, MOST = 2, 4, 6, 3, 3
SLOTS = torch.tensor([2, 0])
POISON = float("nan")
Step = tuple[int, list[int], list[int]]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """(certain tokens, tokens of each sequence, how many of these stay)."""
    num_stored = draw(st.integers(0, 1))
    counts = [draw(st.integers(1, MOST)) for _ in SLOTS]
    return num_stored, counts, [draw(st.integers(num_stored, count)) for count in counts]


class Inputs:
    """What a sequence's tokens would bring, one after another."""

    def __init__(self, num_tokens: int) -> None:
        torch.manual_seed(num_tokens)
        self.x = torch.randn(num_tokens, CHANNELS)
        self.q, self.k, self.v = (torch.randn(num_tokens, HEADS, DIM) / 2 for _ in range(3))
        self.decay, self.beta = (torch.rand(num_tokens, HEADS) for _ in range(2))

    def at(self, places: list[int]) -> tuple[torch.Tensor, ...]:
        every = (self.x, self.q, self.k, self.v, self.decay, self.beta)
        return tuple(tensor[places] for tensor in every)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps(), min_size=1, max_size=8))
def test_tokens_and_states_are_those_of_plain_decoding(taken: list[Step]) -> None:
    weight = torch.linspace(-1, 1, CHANNELS * 4).view(CHANNELS, 4)
    sequences = [Inputs(50 + i) for i in range(len(SLOTS))]
    conv = torch.randn(NUM_SLOTS, CHANNELS, 3)
    state = torch.randn(NUM_SLOTS, HEADS, DIM, DIM)
    plain_conv, plain_state = conv.clone(), state.clone()
    pending = torch.zeros(NUM_SLOTS, dtype=torch.int32)
    ring = StateRing(
        torch.full((NUM_SLOTS, MOST, CHANNELS), POISON),
        torch.full((NUM_SLOTS, HEADS, MOST, 2 * DIM + 1), POISON),
        pending,
    )
    at = [0, 0]
    for num_stored, counts, stay in taken:
        rows = DraftRows(SLOTS, tuple(counts), (ring,), tuple(pending[SLOTS].tolist()), num_stored)
        parts = [
            inputs.at([*range(begin, begin + count)])
            for inputs, begin, count in zip(sequences, at, counts, strict=True)
        ]
        x, *heads = (torch.cat(each) for each in zip(*parts, strict=True))
        convolved = conv_drafts(x, weight, conv, ring, rows).split(counts)
        outputs = recurrent_drafts(*heads, state, ring, rows).split(counts)
        for i, (slot, kept) in enumerate(zip(SLOTS.tolist(), stay, strict=True)):
            one = Rows(SLOTS[i : i + 1], *[torch.zeros(1, 1)] * 2, (9,), (1,), 64, 64)
            for j in range(kept):
                x, *heads = sequences[i].at([at[i] + j])
                assert torch.allclose(
                    convolved[i][j], conv_decode(x, weight, plain_conv, one)[0], atol=1e-5
                )
                assert torch.allclose(
                    outputs[i][j], recurrent(*heads, plain_state, one)[0], atol=1e-5
                )
            pending[slot] = kept - num_stored
            ring.inputs[slot, kept - num_stored :] = POISON
            ring.updates[slot, :, kept - num_stored :] = POISON
            at[i] += kept
    last = DraftRows(SLOTS, (1, 1), (ring,), tuple(pending[SLOTS].tolist()), 0)
    x, *heads = (torch.cat(each) for each in zip(*(s.at([0]) for s in sequences), strict=True))
    conv_drafts(x, weight, conv, ring, last)
    recurrent_drafts(*heads, state, ring, last)
    assert torch.equal(conv, plain_conv)
    assert torch.allclose(state, plain_state, atol=1e-5)
