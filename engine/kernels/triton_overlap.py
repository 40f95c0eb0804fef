# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Programmatic dependent launch: a kernel starts while its predecessor still runs.

    work without inputs;  wait_for_inputs();  the rest

The wait ends when the predecessor has ended and its writes can be read. Every kernel waits, and
lets its successor start only then. So before its own wait a kernel may read weights, and data
written by its predecessor's predecessor or earlier; after it, everything.

Source: PTX ``griddepcontrol``; CUDA programming guide, programmatic dependent launch.
Reference: the same kernels with ``PDL`` off, one behind the other; test:
tests/kernels/test_gpu_arch.py.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.gpu_arch import DEPENDENT_LAUNCH
from engine.kernels.triton_arch import arch_of


def overlap(x: torch.Tensor) -> dict[str, Any]:
    """Launch arguments that allow the overlap: on for tensors on Hopper GPUs and newer ones, off
    on older ones and in the interpreter."""
    if arch_of(x) >= DEPENDENT_LAUNCH:
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


LOADS_FIRST = {"maxnreg": 255}
"""Launch arguments of a kernel whose time is spent on loads: all registers. Otherwise ptxas uses
some 48 per thread, and lets loads wait for the sum of earlier ones."""


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Wait until the predecessor's writes can be read, then let the successor start."""
    if PDL:
        gdc_wait()
        # Before the wait, later kernels would start too early and occupy the multiprocessors.
        gdc_launch_dependents()


@triton.jit
def prefetch(p, BYTES: tl.constexpr, PDL: tl.constexpr):
    """Prefetch ``BYTES`` (a multiple of 16) from each of the pointers ``p`` on into L2."""
    if PDL and BYTES > 0:
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
            "=r,l,r",
            [p.to(tl.int64), BYTES],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
