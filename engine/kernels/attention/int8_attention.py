"""Attention without a mask, with queries and keys in int8: the launches of ``triton_int8`` and
``gluon_attention``.

Reference: cudnn_attention.attend; test: tests/kernels/attention/test_int8_attention.py.
"""

import torch

from engine.gpu_arch import HOPPER, arch_number
from engine.kernels.attention import gluon_attention
from engine.kernels.attention.attention_pieces import KEYS, OWN, QUERIES
from engine.kernels.attention.triton_int8 import quantise_keys, quantise_queries
from engine.kernels.attention.unmasked import Unmasked
from engine.kernels.hopper_launch import blocks, most_registers

PARTS = 2
"""Parts of the keys, for which other programs attend: the last programs of a launch leave fewer
multiprocessors without work."""
_PER_PROGRAM: int = gluon_attention.GROUPS.value * gluon_attention.QUERIES.value
_NUM_WARPS = 4 * gluon_attention.GROUPS.value + 4
"""Warps that multiply, and four that fetch."""


def supported(head_dim: int, group: int) -> bool:
    """True if ``attend`` serves here, with ``group`` heads per KV head."""
    if (
        group % (_PER_PROGRAM // QUERIES)
        or head_dim != gluon_attention.DIM.value
        or not torch.cuda.is_available()
    ):
        return False
    return arch_number(torch.cuda.get_device_capability()) == HOPPER


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As Unmasked.attend, in PARTS parts, for heads of 256 that lie side by side in ``v``."""
    heads, num_queries, dim = q.shape
    num_keys, tile = k.shape[1], gluon_attention.TILE.value
    assert num_queries % _PER_PROGRAM == 0, num_queries
    assert num_keys >= PARTS * tile, num_keys
    assert v.stride() == (dim, heads * dim, 1), v.stride()
    k8, k_scales, mean = quantise_keys(k, tile)
    q8, q_scales, biases = quantise_queries(q, mean)
    out = q.new_empty(PARTS, heads, num_queries, dim)
    log_sums = torch.empty(PARTS, heads, num_queries, dtype=torch.float32, device=q.device)
    gluon_attention.attention_kernel[(num_queries // _PER_PROGRAM, heads, PARTS)](
        blocks(q8.view(-1, dim), gluon_attention.QUERIES.value, dim),
        q_scales,
        blocks(k8.view(-1, dim), tile, dim),
        k_scales,
        blocks(v.transpose(0, 1).flatten(1), tile, dim),
        biases,
        out,
        log_sums,
        num_queries,
        num_keys,
        num_warps=4,
        maxnreg=most_registers(_NUM_WARPS),
    )
    return out, log_sums


assert gluon_attention.TILE.value == KEYS
assert _PER_PROGRAM % QUERIES == 0
INT8 = Unmasked("int8 on tensor cores", OWN, attend)
