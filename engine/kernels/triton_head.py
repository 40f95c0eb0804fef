# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Heads whose size is no power of two, such as 80 or 96: a tile has the next power of two.

Memory has no padding, so loads and stores of a tile are masked; a padded dimension is zero in it.
For sizes that are powers of two no mask is compiled.

Reference and test: those of the attention kernels, tests/kernels/attention/test_attention_kinds.py.
"""

import triton
import triton.language as tl


def tile_width(head_dim: int) -> int:
    """Number of dimensions in a tile of heads of ``head_dim``."""
    return int(triton.next_power_of_2(head_dim))


@triton.jit
def within(m_row, o_d, DIM: tl.constexpr):
    """The mask of a tile: its rows' mask [rows, 1] and, for padded heads, dimensions below
    ``DIM``."""
    return m_row if o_d.shape[0] == DIM else m_row & (o_d < DIM)[None, :]


@triton.jit
def load_dims(p, o_d, DIM: tl.constexpr):
    """Load a vector of dimensions ``o_d``; padded ones are zero."""
    return tl.load(p) if o_d.shape[0] == DIM else tl.load(p, mask=o_d < DIM, other=0.0)


@triton.jit
def load_rows(p, o_d, DIM: tl.constexpr):
    """Load a tile [rows, dimensions ``o_d``]; padded dimensions are zero."""
    IS_WHOLE: tl.constexpr = o_d.shape[0] == DIM
    return tl.load(p) if IS_WHOLE else tl.load(p, mask=(o_d < DIM)[None, :], other=0.0)
