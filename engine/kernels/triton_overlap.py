"""Programmatic dependent launch: a kernel starts while its predecessor still runs.

    prefetch(weights);  dependents_may_launch();  wait_for_inputs();  …the kernel…

Before ``wait_for_inputs`` a kernel may touch only what no running kernel writes: weights. Every
kernel waits, so a kernel that has waited sees all of its predecessors' results, not only the
last one's. A kernel that calls ``dependents_may_launch`` after its own wait lets its successor
read, before waiting, everything that the successor's successor-in-reverse (two back) wrote.

Source: PTX ``griddepcontrol``; CUDA programming guide, programmatic dependent launch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def overlap(x: torch.Tensor) -> dict[str, Any]:
    """Launch arguments: on for CUDA tensors, off in the interpreter."""
    return {"PDL": True, "launch_pdl": True} if x.is_cuda else {"PDL": False}


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    if PDL:
        gdc_wait()


@triton.jit
def dependents_may_launch(PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()


@triton.jit
def prefetch(p, PDL: tl.constexpr):
    """Ask for the 128-byte lines at the pointers ``p`` to be brought into the L2 cache."""
    if PDL:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [p.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
