"""Attention without a mask, by cuDNN's flash attention through PyTorch.

On an H100 or H200 with ``head_dim`` 256 it computes at up to 1.4 times the speed of
triton_attention_prefill.py. Its first call of a shape takes some time, in which it makes a plan.
Reference: ``torch.nn.functional.scaled_dot_product_attention``; test:
tests/kernels/attention/test_attention_pieces.py.
"""

import torch

from engine.kernels.attention.attention_pieces import LIBRARY
from engine.kernels.attention.unmasked import Unmasked

HEAD_DIM = 256
LEAST_VERSION = 91_000


def unsupported(dtype: torch.dtype, head_dim: int) -> str:
    """Why ``attend`` does not serve here; "" if it does."""
    if dtype is not torch.bfloat16 or head_dim != HEAD_DIM:
        return f"it is for bfloat16 and heads of {HEAD_DIM}"
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return "it was measured on Hopper GPUs only"
    version = torch.backends.cudnn.version() or 0
    if version < LEAST_VERSION:
        return f"cuDNN {version} is older than {LEAST_VERSION}"
    return ""


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As Unmasked.attend, in one part."""
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q[None], k[None], v[None], None, True, scale=q.shape[-1] ** -0.5
    )
    return found[0], found[1].view(1, *q.shape[:2])


CUDNN = Unmasked("cuDNN", LIBRARY, attend)
