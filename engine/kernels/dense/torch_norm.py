"""RMS norms and rotary positions in plain PyTorch."""

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x * rsqrt(mean(x^2) + eps) * weight`` over the last axis, computed in float32.

    ``weight`` broadcasts over the leading axes.
    """
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).mul_(weight).to(x.dtype)


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """RMS norm, then times silu(gate); both in float32, cast to the gate's dtype."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).mul_(weight).mul_(F.silu(gate.float())).to(gate.dtype)


def rope_table(positions: torch.Tensor, inv_freq: torch.Tensor) -> torch.Tensor:
    """The rotations [2, tokens, 1, rotary_dim]: cos, and sin signed for
    ``x * cos + roll(x) * sin``."""
    angles = positions.to(torch.float32).unsqueeze(1) * inv_freq
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))).unsqueeze(2)


def norm_rope(
    x: torch.Tensor, weight: torch.Tensor, rope: torch.Tensor, eps: float
) -> torch.Tensor:
    """RMS norm per head, then rotate pairs (i, i + rotary_dim / 2) of the first dims."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return rotate((wide * scale).mul_(weight), rope).to(x.dtype)


def rotate(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + rotary_dim / 2) of the first dims of float32 ``x``; may be in place."""
    cos, sin = rope[0], rope[1]
    rotary_dim = cos.shape[-1]
    rotated = x[..., :rotary_dim]
    swapped = rotated.roll(rotary_dim // 2, -1)
    rotated.mul_(cos).addcmul_(swapped, sin)
    return x
