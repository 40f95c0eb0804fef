"""Writes a checkpoint's matrices in quantised formats, by formulas that are independent of the
engine's, and says what their values then are."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.engine.checkpoints import KEPT_IN_BF16

Tensors = dict[str, torch.Tensor]
Writer = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor] | None]
"""Maps a matrix [rows, k] to its stored tensors, by suffix, and its values in float32. None: the
matrix does not fit the format."""
LEFT = ("conv1d", "visual", "mtp.")
"""Parts of the names of tensors that no quantiser converts."""
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def quantised(
    plain: Path, folder: Path, write: Callable[[str], Writer | None], config: dict[str, Any]
) -> Path:
    """Copy the checkpoint ``plain`` to ``folder`` with matrices stored as ``write`` of the module's
    name says -> a folder like ``plain`` with the values that the copy then has."""
    shutil.copytree(plain, folder)
    tensors = load_file(plain / "model.safetensors")
    stored, meant, kept = dict(tensors), dict(tensors), []
    for name, tensor in tensors.items():
        module, writer = name.removesuffix(".weight"), write(name.removesuffix(".weight"))
        if tensor.dim() < 2 or writer is None or any(part in name for part in LEFT):
            continue
        form = None if module.endswith(KEPT_IN_BF16) else writer(tensor)
        if form is None:
            kept.append(module)
            continue
        parts, meant[name] = form
        del stored[name]
        join = "" if name.endswith(".weight") else "_"
        for suffix, part in parts.items():
            # The values of a parameter that is no module's weight keep its name.
            own = name if join and suffix == "weight" else f"{module}{join or '.'}{suffix}"
            stored[own] = part.contiguous()
    save_file(stored, folder / "model.safetensors")
    ignored = "modules_to_not_convert" if config.get("quant_method") == "awq" else "ignore"
    raw = json.loads((folder / "config.json").read_text())
    raw["quantization_config"] = {ignored: kept} | config
    (folder / "config.json").write_text(json.dumps(raw))
    values = folder.with_name(f"{folder.name}-values")
    shutil.copytree(plain, values)
    save_file(
        {name: tensor.contiguous() for name, tensor in meant.items()}, values / "model.safetensors"
    )
    return values


def modelopt_nvfp4(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
    codes, scale, matrix_scale = _nvfp4(matrix)
    wide = (scale.float() * matrix_scale[..., None, None]).repeat_interleave(16, -1)
    parts = {
        "weight": codes[..., 0::2] + 16 * codes[..., 1::2],
        "weight_scale": scale,
        "weight_scale_2": matrix_scale,
        "input_scale": torch.tensor(0.01),
    }
    return parts, E2M1[codes.long()] * wide


def modelopt_fp8(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = matrix.abs().max() / 448
    numbers = (matrix / scale).to(torch.float8_e4m3fn)
    parts = {"weight": numbers, "weight_scale": scale, "input_scale": torch.tensor(0.02)}
    return parts, numbers.float() * scale


def compressed_nvfp4(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scale, matrix_scale = _nvfp4(matrix)
    divisor = (1 / matrix_scale).reshape(1)
    parts = {
        "weight_packed": codes[:, 0::2] + 16 * codes[:, 1::2],
        "weight_scale": scale,
        "weight_global_scale": divisor,
        "input_global_scale": torch.tensor([100.0]),
    }
    return parts, E2M1[codes.long()] * (scale.float() / divisor).repeat_interleave(16, 1)


def per_row(dtype: torch.dtype) -> Writer:
    def write(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        largest = 448 if dtype == torch.float8_e4m3fn else 127
        scale = (matrix.abs().amax(1, keepdim=True) / largest).bfloat16()
        numbers = matrix / scale.float()
        numbers = (numbers if largest == 448 else numbers.round()).clamp(-largest, largest)
        numbers = numbers.to(dtype)
        return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale.float()

    return write


def pack_quantized(bits: int, group: int | None, *, symmetric: bool) -> Writer:
    def write(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        if matrix.shape[1] % (group or 1) or matrix.shape[0] % 8:
            return None
        numbers, zeros, scale, values = _integers(matrix, bits, group, torch.bfloat16, symmetric)
        parts = {
            "weight_packed": _words(numbers, bits),
            "weight_scale": scale,
            "weight_shape": torch.tensor(matrix.shape),
        }
        if not symmetric:
            parts["weight_zero_point"] = _words(zeros.t(), bits).t()
        return parts, values

    return write


def awq(group: int) -> Writer:
    def write(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        if matrix.shape[1] % group or matrix.shape[0] % 8:
            return None
        numbers, zeros, scale, values = _integers(matrix, 4, group, torch.float16, False)
        order = [8 * i + j for i in range(matrix.shape[0] // 8) for j in (0, 2, 4, 6, 1, 3, 5, 7)]
        parts = {
            "qweight": _words(numbers.t()[:, order], 4),
            "qzeros": _words(zeros.t()[:, order], 4),
            "scales": scale.t(),
        }
        return parts, values

    return write


def gptq(group: int, *, symmetric: bool, v2: bool = False) -> Writer:
    def write(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        if matrix.shape[1] % group or matrix.shape[0] % 8:
            return None
        numbers, zeros, scale, values = _integers(matrix, 4, group, torch.float16, symmetric)
        parts = {
            "qweight": _words(numbers, 4).t(),
            "qzeros": _words((zeros if v2 else (zeros - 1) % 16).t(), 4),
            "scales": scale.t(),
        }
        if not v2:
            parts["g_idx"] = torch.tensor([i // group for i in range(matrix.shape[1])]).int()
        return parts, values

    return write


def _nvfp4(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes of e2m1, scales and the matrix scale of [..., rows, k]."""
    matrix_scale = matrix.abs().amax((-2, -1)) / (6 * 448)
    largest = matrix.unflatten(-1, (-1, 16)).abs().amax(-1)
    scale = (largest / 6 / matrix_scale[..., None, None]).to(torch.float8_e4m3fn)
    wide = (scale.float() * matrix_scale[..., None, None]).repeat_interleave(16, -1)
    codes = ((matrix / wide).unsqueeze(-1) - E2M1).abs().argmin(-1)
    return codes.to(torch.uint8), scale, matrix_scale


def _integers(
    matrix: torch.Tensor, bits: int, group: int | None, dtype: torch.dtype, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers [rows, k], zero points and scales [rows, groups], and values [rows, k]."""
    group = group or matrix.shape[1]
    groups, most = matrix.unflatten(1, (-1, group)), 2**bits - 1
    if symmetric:
        scale = (groups.abs().amax(-1) / (most // 2)).to(dtype)
        zeros = torch.full(scale.shape, 2 ** (bits - 1))
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = ((high - low) / most).to(dtype)
        zeros = (-low / scale.float()).round().clamp(0, most).long()
    wide = scale.float().repeat_interleave(group, 1)
    wide_zeros = zeros.repeat_interleave(group, 1)
    numbers = ((matrix / wide).round() + wide_zeros).clamp(0, most).long()
    return numbers, zeros, scale, (numbers - wide_zeros) * wide


def _words(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, k] as int32 [rows, k * bits / 32], the first number in the lowest bits."""
    words = torch.zeros(numbers.shape[0], numbers.shape[1] * bits // 32, dtype=torch.int64)
    for i in range(32 // bits):
        words += numbers[:, i :: 32 // bits].long() * 2 ** (bits * i)
    return words.where(words < 2**31, words - 2**32).int()
