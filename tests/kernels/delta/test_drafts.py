"""Steps with drafts, and steps that may abort, against plain ones: the same bits."""

import random

import pytest
import torch

from engine.cache.state_ring import StateRing
from engine.kernels.delta.triton_conv_linear import MAX_FUSED, conv_linear
from engine.kernels.delta.triton_delta_decode import DeltaWorkspace, delta_decode, ring_shape
from engine.kernels.dense.triton_rows import Tiles
from engine.kernels.formats.triton_split import Split, split_rows
from engine.model.matrix import Matrix
from tests.kernels.closeness import same_split
from tests.kernels.delta.test_delta import EPS, Layer

NUM_SLOTS, MAX_DRAFTS = 5, 3
POISON = float("nan")
DIM = 128 if torch.cuda.is_available() else 16
"""Of heads: the real one on a GPU, where what is fused with what may depend on it."""


def ring_of(layer: Layer, device: torch.device, num_entries: int = MAX_DRAFTS) -> StateRing:
    """Full of NaN, nothing pending."""
    parts, numbers = ring_shape(layer.v_heads, layer.dim)
    inputs = torch.full((NUM_SLOTS, num_entries, layer.channels), POISON, device=device)
    updates = torch.full((NUM_SLOTS, parts, num_entries, numbers), POISON, device=device)
    pending = torch.zeros(NUM_SLOTS, dtype=torch.int32, device=device)
    return StateRing(inputs.to(layer.dtype), updates, pending)


def accept(ring: StateRing, slots: list[int], accepted: list[int]) -> None:
    """What the next step applies; what was refused is poison from now on."""
    for slot, num in zip(slots, accepted, strict=True):
        ring.pending[slot] = num
        ring.inputs[slot, num:] = POISON
        ring.updates[slot, :, num:] = POISON


def step(
    layer: Layer,
    projected: torch.Tensor,
    slots: list[int],
    ring: StateRing | None,
    num_stored: int = 1,
) -> torch.Tensor:
    """One step of rows of equally many tokens -> [tokens, value_dim]."""
    device, num_tokens = projected.device, projected.shape[0]
    index = torch.tensor(slots, dtype=torch.int32, device=device)
    width = 32 if num_tokens <= MAX_FUSED else 64
    x = torch.eye(width, device=device, dtype=projected.dtype)[:num_tokens]
    weight = torch.zeros(projected.shape[1], width, device=device, dtype=projected.dtype)
    weight[:, :num_tokens] = projected.t()
    workspace = DeltaWorkspace.allocate(num_tokens, layer.v_heads, layer.dim, device)
    convolved = conv_linear(
        x, Matrix.of(weight), layer.conv, layer.conv_state, index,
        ring, num_stored, tiles=Tiles(16, 32, 2, 4, True),
    )  # fmt: skip
    split = Split.empty(num_tokens, layer.value_dim, layer.v_heads, device)
    out = delta_decode(
        convolved[:, : projected.shape[1]], layer.neg_exp_a, layer.dt_bias, layer.norm,
        layer.state, index, EPS, workspace, ring, num_stored, split=split,
    )  # fmt: skip
    assert same_split(split, split_rows(out, layer.v_heads))
    return out


def test_a_token_has_the_bits_that_it_has_without_drafts(device: torch.device) -> None:
    """In bfloat16: the GPU's tf32 would round the projections of the two ways differently."""
    layer, slots = Layer(2, 4, DIM, NUM_SLOTS, torch.bfloat16, device), [3, 0]
    conv, state = layer.conv_state.clone(), layer.state.clone()
    truth = layer.projected(2 * 24).view(2, 24, -1)
    plain = torch.stack([step(layer, truth[:, t], slots, None) for t in range(24)], 1)
    plain_conv, plain_state = layer.conv_state.clone(), layer.state.clone()

    layer.conv_state.copy_(conv)
    layer.state.copy_(state)
    ring, done = ring_of(layer, device), [0, 0]
    for accepted in ([2, 0], [1, 3], [0, 0], [3, 1], [2, 2], [0, 1], [3, 3]):
        tokens = layer.projected(2 * (1 + MAX_DRAFTS)).view(2, 1 + MAX_DRAFTS, -1)
        for row, (begin, num) in enumerate(zip(done, accepted, strict=True)):
            tokens[row, : num + 1] = truth[row, begin : begin + num + 1]
        out = step(layer, tokens.flatten(0, 1), slots, ring).view(2, 1 + MAX_DRAFTS, -1)
        for row, (begin, num) in enumerate(zip(done, accepted, strict=True)):
            assert torch.equal(out[row, : num + 1], plain[row, begin : begin + num + 1])
            done[row] += num + 1
        accept(ring, slots, accepted)
    # Steps without drafts: the first one applies what is pending.
    while max(done) < 24:
        now = torch.stack([truth[row, min(at, 23)] for row, at in enumerate(done)])
        out = step(layer, now, slots, ring)
        for row, at in enumerate(done):
            if at < 24:
                assert torch.equal(out[row], plain[row, at])
                done[row] += 1
            if at == 23:
                assert torch.equal(layer.state[slots[row]], plain_state[slots[row]])
                assert torch.equal(layer.conv_state[slots[row]], plain_conv[slots[row]])
        accept(ring, slots, [0, 0])


@pytest.mark.parametrize("num_padding", [0, MAX_FUSED])
def test_a_step_that_was_aborted_has_changed_nothing(
    num_padding: int, device: torch.device
) -> None:
    """Up to MAX_FUSED rows are convolved with their projection, more by a kernel of its own."""
    draw, live, num_tokens = random.Random(1), [3, 0], 6
    layer, slots = Layer(1, 2, DIM, NUM_SLOTS, torch.bfloat16, device), [*live, *[-1] * num_padding]
    conv, state = layer.conv_state.clone(), layer.state.clone()
    truth = [layer.projected(len(slots)) for _ in range(num_tokens)]
    plain, behind = [], [(conv, state)]
    for projected in truth:
        plain.append(step(layer, projected, slots, None))
        behind.append((layer.conv_state.clone(), layer.state.clone()))

    layer.conv_state.copy_(conv)
    layer.state.copy_(state)
    ring, at = ring_of(layer, device, 1), 0
    while at < num_tokens:
        kind = draw.choice(["spread", "aborted", "aborted", "local"])
        if kind == "aborted":
            step(layer, torch.full_like(truth[0], POISON), slots, ring, 0)
            before = at
        else:
            num_stored = int(kind == "local")
            assert torch.equal(step(layer, truth[at], slots, ring, num_stored), plain[at])
            before, at = at + num_stored, at + 1
        accept(ring, live, [at - before] * len(live))
        assert torch.equal(layer.conv_state, behind[before][0])
        assert torch.equal(layer.state, behind[before][1])


def test_a_row_without_a_slot_touches_nothing(device: torch.device) -> None:
    layer = Layer(2, 4, DIM, NUM_SLOTS, torch.bfloat16, device)
    conv, state = layer.conv_state.clone(), layer.state.clone()
    ring = ring_of(layer, device)
    out = step(layer, layer.projected(4), [-1, -1], ring)
    assert not out.any()
    assert torch.equal(layer.conv_state, conv)
    assert torch.equal(layer.state, state)
    assert ring.updates.isnan().all()
    assert ring.inputs.isnan().all()
