"""What architectures of NVIDIA GPUs have. An architecture is a number: 90 for compute capability
9.0, Hopper.

Source: CUDA programming guide, features and technical specifications by compute capability.
"""

CPU = 0
"""In Triton's interpreter: as Hopper, but without dependent launch."""
OLDEST = 80
"""Ampere, the first with products of bfloat16."""
FP8 = 89
"""Ada, the first with the type e4m3."""
HOPPER = 90
DEPENDENT_LAUNCH = HOPPER
"""Hopper, the first with programmatic dependent launch."""
MEASURED = 90
"""The only one on which Baton was run."""
SMALL_SHARED_BYTES = 99 << 10
"""Shared memory of one program on a GPU with ``has_small_shared_memory``."""
_SHARED_KIB = {CPU: 227, 80: 163, 87: 163, 90: 227, 100: 227, 103: 227}


def arch_number(capability: tuple[int, int]) -> int:
    return 10 * capability[0] + capability[1]


def shared_bytes(arch: int) -> int:
    """Shared memory available to one program; the smallest size for an unknown architecture."""
    return _SHARED_KIB[arch] << 10 if arch in _SHARED_KIB else SMALL_SHARED_BYTES


def has_small_shared_memory(arch: int) -> bool:
    """True for 8.6, 8.9 and 12.0, the GPUs of workstations and desktops."""
    return shared_bytes(arch) <= SMALL_SHARED_BYTES


def has_fp8(arch: int) -> bool:
    """True if kernels may have operands of the type e4m3."""
    return arch == CPU or arch >= FP8


def arch_problem(arch: int, *, quantised: bool) -> str:
    """Why kernels cannot run on it, with quantised weights if ``quantised``; "" if they can."""
    if arch < OLDEST:
        return "the kernels need 8.0 (Ampere) or newer"
    if quantised and not has_fp8(arch):
        return "quantised weights need 8.9 (Ada) or newer; --quantize none or dequantize"
    return ""


def unmeasured(arch: int) -> str:
    """What a user of such a GPU should know; "" for the architecture that was measured."""
    if arch == MEASURED:
        return ""
    return (
        "kernels compile for it, but neither speed nor results were measured there, "
        "only on 9.0 (Hopper)"
    )
