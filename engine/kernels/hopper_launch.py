"""What launches of Gluon's kernels on Hopper have in common."""

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def blocks(of: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """The copy engine's view of a matrix: blocks [rows, columns], which lie in shared memory as the
    tensor cores read them."""
    swizzled = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8 * of.itemsize)
    return TensorDescriptor.from_tensor(of, [rows, columns], swizzled)


def most_registers(num_warps: int) -> int:
    """Registers of a thread at the start: all that a multiprocessor has for so many warps, in
    multiples of 8. The kernel then gives most of them to the warps that multiply."""
    return (64 << 10) // (32 * num_warps) // 8 * 8
