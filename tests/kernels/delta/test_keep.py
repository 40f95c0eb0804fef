"""The kernels of DeltaNet store the state behind a chunk's first blocks as well."""

import torch

from engine.batch import Keep
from engine.kernels.batch.triton_prefill_plan import TILE_LEN, HostPlan, PrefillPlan
from engine.kernels.delta.triton_conv import conv_qkv
from engine.kernels.delta.triton_delta_prefill import delta_prefill
from tests.kernels.closeness import relative_error
from tests.kernels.delta.test_delta import BOUND, Layer, rows_of

SLOTS = [2, 5, 0, 3, 6, 1]
STARTS = [0, 73, 0, 128, 70, 64]
LENS = [150, 130, 2, 64, 2, 65]
KEEPS = [Keep(64, 7), Keep(128, 8), Keep(2, 9), Keep(64, 10), Keep(2, 11), None]
NUM_SLOTS = 13


class Pass:
    """A layer and its input; each ``run`` begins from the same states."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.layer, self.device = Layer(2, 4, 16, NUM_SLOTS, dtype, device), device
        for slot, start in zip(SLOTS, STARTS, strict=True):
            if start == 0:
                self.layer.state[slot] = self.layer.conv_state[slot] = float("nan")
        self.before = self.layer.conv_state.clone(), self.layer.state.clone()
        self.projected = self.layer.projected(sum(LENS))

    def run(
        self, x: torch.Tensor, slots: list[int], plan: PrefillPlan
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The output, and the conv and recurrent states of all slots."""
        layer = self.layer
        layer.conv_state.copy_(self.before[0])
        layer.state.copy_(self.before[1])
        on_device = torch.tensor(slots, device=self.device)
        q, k, v = conv_qkv(x, layer.conv, layer.conv_state, on_device, plan, 2, 16, 16)
        b, a = x[:, layer.channels + layer.value_dim :].split(layer.v_heads, 1)
        out = delta_prefill(
            q, k, v, b, a, layer.neg_exp_a, layer.dt_bias, layer.state, on_device, plan
        )
        return out, layer.conv_state.clone(), layer.state.clone()


def test_a_kept_state_is_that_of_a_chunk_that_ends_there(device: torch.device) -> None:
    each = Pass(torch.bfloat16, device)
    plain = each.run(each.projected, SLOTS, PrefillPlan.of(STARTS, LENS, device))
    keeping = PrefillPlan.of(STARTS, LENS, device, keeps=KEEPS)
    out, conv, state = each.run(each.projected, SLOTS, keeping)
    assert torch.equal(out, plain[0])
    kept = [keep.state_slot for keep in KEEPS if keep]
    others = [slot for slot in range(NUM_SLOTS) if slot not in kept]
    assert torch.equal(conv[others].nan_to_num(), plain[1][others].nan_to_num())
    assert torch.equal(state[others].nan_to_num(), plain[2][others].nan_to_num())

    rows = zip(SLOTS, STARTS, each.projected.split(LENS), KEEPS, strict=True)
    for slot, start, x, keep in rows:
        if keep is None:
            continue
        ended = PrefillPlan.of([start], [keep.num_tokens], device)
        _, true_conv, true_state = each.run(x[: keep.num_tokens], [slot], ended)
        assert torch.equal(conv[keep.state_slot], true_conv[slot])
        assert torch.equal(state[keep.state_slot], true_state[slot])


def test_rows_that_keep_may_be_padded(device: torch.device) -> None:
    each, num_tokens = Pass(torch.bfloat16, device), sum(LENS)
    host = HostPlan.of(STARTS, LENS, keeps=KEEPS)
    exact = each.run(each.projected, SLOTS, PrefillPlan.upload(host, device, TILE_LEN))
    padded = each.projected.new_full((448, each.projected.shape[1]), float("nan"))
    padded[:num_tokens] = each.projected
    plan = PrefillPlan.upload(host.padded(448, 8), device, TILE_LEN)
    out, conv, state = each.run(padded, [*SLOTS, *[-(10**6)] * 3], plan)
    assert torch.equal(out[:num_tokens], exact[0])
    assert torch.equal(conv, exact[1])
    assert torch.equal(state, exact[2])


def test_what_was_kept_is_what_pytorch_keeps(device: torch.device) -> None:
    each = Pass(torch.float32, device)
    plan = PrefillPlan.of(STARTS, LENS, device, keeps=KEEPS)
    _, conv, state = each.run(each.projected, SLOTS, plan)
    rows = rows_of(SLOTS, STARTS, LENS, device)
    rows.keeps = tuple(KEEPS)
    true_conv, true_state = each.before
    each.layer.truth(each.projected, rows, true_conv, true_state)
    assert torch.equal(conv, true_conv)
    assert relative_error(state, true_state) < BOUND[torch.float32]
