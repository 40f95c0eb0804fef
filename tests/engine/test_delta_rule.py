"""The two forms of the gated delta rule against the recurrence as written."""

import pytest
import torch

from engine.inputs import Rows
from engine.kernels.delta.torch_delta_rule import chunked, recurrent


def rows_of(starts: tuple[int, ...], lens: tuple[int, ...]) -> Rows:
    ends = [start + length for start, length in zip(starts, lens, strict=True)]
    tables = torch.zeros(len(lens), 1, dtype=torch.int64)
    slots = torch.arange(len(lens) - 1, -1, -1)
    return Rows(slots, torch.tensor(ends), tables, starts, lens, page_size=64, page_rows=128)


def naive(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    s: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    outputs = []
    for t in range(q.shape[0]):
        s = s * g[t].exp()[:, None, None]
        delta = (v[t] - torch.einsum("hkv,hk->hv", s, k[t])) * beta[t][:, None]
        s = s + torch.einsum("hk,hv->hkv", k[t], delta)
        outputs.append(torch.einsum("hkv,hk->hv", s, q[t]))
    return torch.stack(outputs), s


def draw(num_tokens: int, heads: int, k_dim: int, v_dim: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(num_tokens)
    q = torch.nn.functional.normalize(torch.randn(num_tokens, heads, k_dim), dim=-1)
    k = torch.nn.functional.normalize(torch.randn(num_tokens, heads, k_dim), dim=-1)
    v = torch.randn(num_tokens, heads, v_dim)
    g = -torch.rand(num_tokens, heads) * 3
    return q, k, v, g, torch.rand(num_tokens, heads)


@pytest.mark.parametrize(
    ("starts", "lens"),
    [((0,), (1,)), ((64,), (64,)), ((0, 128, 0, 64), (63, 65, 200, 3))],
)
def test_blocks_equal_the_recurrence(starts: tuple[int, ...], lens: tuple[int, ...]) -> None:
    heads, k_dim, v_dim = 3, 5, 7
    parts = draw(sum(lens), heads, k_dim, v_dim)
    state = torch.randn(len(lens), heads, k_dim, v_dim)
    rows = rows_of(starts, lens)
    fresh = [
        slot for slot, start in zip(rows.state_slots.tolist(), starts, strict=True) if not start
    ]
    initial = state.clone()
    initial[fresh] = 0.0
    state[fresh] = float("nan")
    got = chunked(*parts, state, rows).split(lens)
    for i, row in enumerate(zip(*(part.split(lens) for part in parts), strict=True)):
        slot = int(rows.state_slots[i])
        expected, final = naive(*row, initial[slot])
        torch.testing.assert_close(got[i], expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(state[slot], final, atol=1e-5, rtol=1e-4)


def test_one_token_of_many_rows() -> None:
    num_rows, heads, k_dim, v_dim = 5, 3, 5, 7
    q, k, v, g, beta = draw(num_rows, heads, k_dim, v_dim)
    state = torch.randn(num_rows, heads, k_dim, v_dim)
    initial = state.clone()
    rows = rows_of((9,) * num_rows, (1,) * num_rows)
    got = recurrent(q, k, v, g.exp(), beta, state, rows)
    for i, slot in enumerate(rows.state_slots.tolist()):
        one = slice(i, i + 1)
        expected, final = naive(q[one], k[one], v[one], g[one], beta[one], initial[slot])
        torch.testing.assert_close(got[one], expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(state[slot], final, atol=1e-5, rtol=1e-4)
