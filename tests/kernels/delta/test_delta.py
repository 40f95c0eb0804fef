"""Gated DeltaNet kernels against plain PyTorch, at odd shapes."""

import pytest
import torch
import torch.nn.functional as F

from engine.inputs import Rows
from engine.kernels.batch.triton_prefill_plan import HostPlan, PrefillPlan
from engine.kernels.delta import torch_conv, torch_delta_rule
from engine.kernels.delta.triton_conv import conv_qkv
from engine.kernels.delta.triton_conv_linear import conv_linear
from engine.kernels.delta.triton_delta_decode import DeltaWorkspace, delta_decode
from engine.kernels.delta.triton_delta_prefill import delta_prefill
from engine.kernels.delta.triton_gated_norm import gated_rms_norm
from engine.kernels.dense import torch_norm
from engine.kernels.dense.triton_rows import Tiles
from engine.kernels.formats.triton_split import Split, split_rows
from engine.model.matrix import Matrix
from tests.kernels.closeness import relative_error, same_split

EPS = 1e-6
# The GPU multiplies float32 tiles in tf32.
BOUND = {torch.float32: 2e-3 if torch.cuda.is_available() else 1e-4, torch.bfloat16: 8e-3}


class Layer:
    """Random weights and state of one layer, a view into a cache of two."""

    def __init__(
        self, k_heads: int, v_heads: int, dim: int, slots: int, dtype: torch.dtype, device: object
    ) -> None:
        self.k_heads, self.v_heads, self.dim, self.dtype = k_heads, v_heads, dim, dtype
        self.channels = (2 * k_heads + v_heads) * dim
        self.value_dim = v_heads * dim
        torch.set_default_device(device)
        self.conv = (torch.randn(self.channels, 4) / 2).to(dtype)
        self.neg_exp_a = -torch.rand(v_heads).exp()
        self.dt_bias = torch.randn(v_heads)
        self.norm = torch.rand(dim) + 0.5
        self.conv_state = torch.randn(slots, 2, self.channels, 3).to(dtype)[:, 1]
        self.state = torch.randn(slots, 2, v_heads, dim, dim)[:, 1]
        torch.set_default_device(None)

    def projected(self, tokens: int) -> torch.Tensor:
        width = self.channels + self.value_dim + 2 * self.v_heads
        return torch.randn(tokens, width, device=self.conv.device).to(self.dtype)

    def truth(
        self, projected: torch.Tensor, rows: Rows, conv: torch.Tensor, state: torch.Tensor
    ) -> torch.Tensor:
        """What the PyTorch kernels make of it, in float32 except where activations are rounded."""
        sizes = (self.channels, self.value_dim, self.v_heads, self.v_heads)
        qkv, z, b, a = projected.float().split_with_sizes(sizes, -1)
        decode = max(rows.lens) == 1 and min(rows.starts) > 0
        convolve = torch_conv.conv_decode if decode else torch_conv.conv_prefill
        history = conv.float()
        qkv = convolve(qkv, self.conv.float(), history, rows).to(self.dtype)
        conv.copy_(history)
        q, k, v = torch_delta_rule.split_qk(qkv, self.v_heads, self.dim, self.dim)
        beta, g = b.sigmoid(), F.softplus(a + self.dt_bias) * self.neg_exp_a
        if decode:
            out = torch_delta_rule.recurrent(q, k, v, g.exp(), beta, state, rows)
        else:
            out = torch_delta_rule.chunked(q, k, v, g, beta, state, rows)
        z = z.view(out.shape)
        return torch_norm.gated_rms_norm(out, z, self.norm, EPS).flatten(1)


def rows_of(slots: list[int], starts: list[int], lens: list[int], device: torch.device) -> Rows:
    empty = torch.zeros(len(slots), 1, dtype=torch.int64, device=device)
    index = torch.tensor(slots, device=device)
    return Rows(index, empty[:, 0], empty, tuple(starts), tuple(lens), 64, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [8, 16])
def test_decode(dtype: torch.dtype, columns: int, device: torch.device) -> None:
    layer = Layer(3, 6, 16, 5, dtype, device)
    rows = rows_of([3, 0, 4], [9, 9, 9], [1, 1, 1], device)
    conv, state = layer.conv_state.clone(), layer.state.clone()
    workspace = DeltaWorkspace.allocate(4, 6, 16, device)
    slots = torch.tensor([3, 0, -1, 4], dtype=torch.int32, device=device)
    for _ in range(2):
        projected = layer.projected(4)
        convolved = project(projected, layer, slots)
        out = delta_decode(
            convolved, layer.neg_exp_a, layer.dt_bias, layer.norm, layer.state, slots, EPS,
            workspace, block_columns=columns, num_warps=2,
        )  # fmt: skip
        live = torch.tensor([0, 1, 3], device=device)
        truth = layer.truth(projected[live], rows, conv, state)
        assert relative_error(out[live], truth) < BOUND[dtype]
        assert not out[2].any()
        assert torch.equal(layer.conv_state, conv)
        assert relative_error(layer.state, state) < BOUND[dtype] / 4
        assert not workspace.arrivals.any()


@pytest.mark.parametrize("columns", [8, 16])
def test_decode_splits_its_output(columns: int, device: torch.device) -> None:
    layer = Layer(3, 6, 16, 5, torch.bfloat16, device)
    workspace = DeltaWorkspace.allocate(4, 6, 16, device)
    slots = torch.tensor([3, 0, -1, 4], dtype=torch.int32, device=device)
    convolved, state = project(layer.projected(4), layer, slots), layer.state.clone()
    outs = []
    split = Split.empty(4, 96, 6, device)
    split.q.view(torch.uint8).fill_(0x7F)
    for written in (None, split):
        layer.state.copy_(state)
        outs.append(
            delta_decode(
                convolved, layer.neg_exp_a, layer.dt_bias, layer.norm, layer.state, slots, EPS,
                workspace, split=written, block_columns=columns, num_warps=2,
            )
        )  # fmt: skip
        outs.append(layer.state.clone())
    assert torch.equal(outs[0], outs[2])
    assert torch.equal(outs[1], outs[3])
    assert same_split(split, split_rows(outs[0], 6))


def test_the_projection_of_many_rows_is_that_of_few(device: torch.device) -> None:
    layer = Layer(2, 4, 16, 72, torch.bfloat16, device)
    before = layer.conv_state.clone()
    slots = torch.randperm(72, device=device)[:70].int()
    slots[33] = -1
    projected = layer.projected(70)
    together = project(projected, layer, slots)
    moved = layer.conv_state.clone()
    layer.conv_state.copy_(before)
    parts = [project(projected[i : i + 35], layer, slots[i : i + 35]) for i in (0, 35)]
    live = slots >= 0
    assert torch.equal(together[live], torch.cat(parts)[live])
    assert torch.equal(layer.conv_state, moved)


def project(projected: torch.Tensor, layer: Layer, slots: torch.Tensor) -> torch.Tensor:
    """``conv_linear`` of inputs and weights whose product is ``projected``, to the last bit."""
    rows = projected.shape[0]
    x = torch.eye(128, device=projected.device, dtype=projected.dtype)[:rows]
    weight = torch.zeros(projected.shape[1], 128, device=x.device, dtype=x.dtype)
    weight[:, :rows] = projected.t()
    tiles = Tiles(16, 32, 2, 4, True)
    return conv_linear(x, Matrix.of(weight), layer.conv, layer.conv_state, slots, tiles=tiles)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prefill(dtype: torch.dtype, device: torch.device) -> None:
    starts, lens = [0, 64, 0, 128], [70, 2, 1, 130]
    layer = Layer(2, 4, 16, 6, dtype, device)
    rows = rows_of([2, 5, 0, 3], starts, lens, device)
    # What belongs to a row that starts at 0 must not be read.
    for slot in (0, 2):
        layer.state[slot] = float("nan")
        layer.conv_state[slot] = float("nan")
    conv, state = layer.conv_state.clone(), layer.state.clone()
    projected = layer.projected(sum(lens))
    plan = PrefillPlan.of(starts, lens, device)
    q, k, v = conv_qkv(
        projected, layer.conv, layer.conv_state, rows.state_slots, plan, 2, layer.dim, layer.dim
    )
    z = projected[:, layer.channels : layer.channels + layer.value_dim]
    b, a = projected[:, layer.channels + layer.value_dim :].split(layer.v_heads, 1)
    out = delta_prefill(
        q, k, v, b, a, layer.neg_exp_a, layer.dt_bias, layer.state, rows.state_slots, plan
    )
    out = gated_rms_norm(out, z, layer.norm, EPS)
    truth = layer.truth(projected, rows, conv, state)
    assert relative_error(out, truth) < 1.5 * BOUND[dtype]
    assert torch.equal(layer.conv_state, conv)
    assert relative_error(layer.state, state) < BOUND[dtype]


def test_padding_changes_nothing(device: torch.device) -> None:
    starts, lens = [0, 64, 128], [70, 2, 65]
    num_tokens, max_tokens, max_rows = sum(lens), 192, 5
    layer = Layer(2, 4, 16, 6, torch.bfloat16, device)
    conv, state = layer.conv_state.clone(), layer.state.clone()
    projected = torch.full((max_tokens, layer.projected(1).shape[1]), float("nan"), device=device)
    projected = projected.to(torch.bfloat16)
    projected[:num_tokens] = layer.projected(num_tokens)

    def run(x: torch.Tensor, slots: list[int], plan: PrefillPlan) -> list[torch.Tensor]:
        layer.conv_state.copy_(conv)
        layer.state.copy_(state)
        on_device = torch.tensor(slots, device=device)
        q, k, v = conv_qkv(
            x, layer.conv, layer.conv_state, on_device, plan, 2, layer.dim, layer.dim
        )
        b, a = x[:, layer.channels + layer.value_dim :].split(layer.v_heads, 1)
        out = delta_prefill(
            q, k, v, b, a, layer.neg_exp_a, layer.dt_bias, layer.state, on_device, plan
        )
        return [out[:num_tokens], layer.conv_state.clone(), layer.state.clone()]

    host = HostPlan.of(starts, lens)
    exact = run(projected[:num_tokens], [2, 5, 3], PrefillPlan.upload(host, device, 16))
    padded = PrefillPlan.upload(host.padded(max_tokens, max_rows), device, 16)
    found = run(projected, [2, 5, 3, -(10**6), -(10**6), -(10**6)], padded)
    assert all(map(torch.equal, found, exact))


def test_prefill_in_two_chunks_is_the_same(device: torch.device) -> None:
    layer = Layer(1, 2, 16, 1, torch.bfloat16, device)
    projected = layer.projected(150)
    slots = torch.zeros(1, dtype=torch.int64, device=device)
    sizes = (layer.channels, layer.value_dim, 2, 2)

    def run(start: int, end: int) -> torch.Tensor:
        part = projected[start:end]
        plan = PrefillPlan.of([start], [end - start], device)
        q, k, v = conv_qkv(part, layer.conv, layer.conv_state, slots, plan, 1, 16, 16)
        _, _, b, a = part.split_with_sizes(sizes, 1)
        return delta_prefill(
            q, k, v, b, a, layer.neg_exp_a, layer.dt_bias, layer.state, slots, plan
        )

    whole = run(0, 150)
    state = layer.state.clone()
    assert torch.equal(torch.cat((run(0, 64), run(64, 150))), whole)
    assert torch.equal(layer.state, state)
