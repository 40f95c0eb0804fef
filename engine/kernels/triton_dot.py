# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A tensor-core product that Triton's interpreter computes too: it takes bf16 bits for integers.

Reference: acc + a @ b; test: tests/kernels/test_shared_functions.py.
"""

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def dot(a, b, acc):
    """``acc + a @ b`` in float32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")
