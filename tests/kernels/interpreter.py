"""Triton's interpreter, with bfloat16 in ``tl.dot``, and faster where its own bookkeeping takes
longer than the kernel: the results and the checks are the same."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
from triton._utils import validate_block_shape
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from tests.kernels import operators

_OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def prepare() -> None:
    """Change the interpreter of this process. To be called once."""
    _multiply_in_float64()
    _check_overflow_in_numpy()
    _look_up_types_once()
    _make_constants_once()
    _describe_shapes_once()
    _reduce_whole_planes()
    _truncate_bfloat16()
    operators.install()
    _patch_language_once()


def _multiply_in_float64() -> None:
    """``tl.dot`` multiplies the bits of bfloat16 operands as integers: give it their values. And it
    leaves the order of the sums to numpy's BLAS, which on some processors depends on where in a
    block a row stands: in float64 it is lost in the rounding, as a tensor core's does not depend on
    the row."""

    def widened(handle: interpreter.TensorHandle) -> Any:
        kind, data = handle.dtype.scalar, handle.data
        if kind == tl.bfloat16:
            data = (data.astype("u4") << 16).view("f4")
        elif kind.primitive_bitwidth == 8:
            data = interpreter._convert_float(data, kind, tl.float16, None).view("f2")
        return data.astype("f8")

    def dot(builder: Any, a: Any, b: Any, into: Any, *_: Any) -> Any:
        product = np.matmul(widened(a), widened(b)).astype(into.data.dtype)
        return interpreter.TensorHandle(product + into.data, into.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = dot


def _patch_language_once() -> None:
    """Every launch and every call of a device function patches ``triton.language``, and a launch
    restores it. Patch it for good, and now: what is made before the first launch, such as the
    constant 0 of uint32, has its types too."""
    interpreter._patch_lang(_patch_language_once)  # it patches the modules that this one imports
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()


def _check_overflow_in_numpy() -> None:
    """Each integer operation is computed once more in int64 and compared with the type's limits;
    do so in three calls of numpy, and in the interpreter's own way only to report an overflow."""
    plain = TritonSemantic.binary_op_sanitize_overflow_impl

    def check(semantic: Any, lhs: Any, rhs: Any, operation: Callable[..., Any]) -> None:
        kind = lhs.type.scalar
        if not semantic.builder.options.sanitize_overflow or kind.int_bitwidth >= 64:
            return
        wide = _OPERATIONS[operation.__name__](
            lhs.handle.data.astype(np.int64), rhs.handle.data.astype(np.int64)
        )
        if wide.min() < kind.get_int_min_value() or wide.max() > kind.get_int_max_value():
            plain(semantic, lhs, rhs, operation)

    TritonSemantic.binary_op_sanitize_overflow_impl = check


def _look_up_types_once() -> None:
    """numpy's type for one of the language's: a table is built for every look-up. It is kept with
    the type, whose hash is its name's."""
    plain = interpreter._get_np_dtype

    def look_up(kind: Any) -> Any:
        scalar = kind.scalar
        if isinstance(scalar, tl.pointer_type):
            return plain(kind)
        if (found := scalar.__dict__.get("numbers")) is None:
            found = scalar.__dict__["numbers"] = plain(scalar)
        return found

    interpreter._get_np_dtype = look_up


def _make_constants_once() -> None:
    """Each whole number beside a tensor, each range and each program's number becomes a tensor: few
    are different. They cannot be written to."""
    plain, plain_range = TritonSemantic.scalar_constant, TritonSemantic.arange
    plain_id = TritonSemantic.program_id

    def read_only(tensor: Any) -> Any:
        tensor.handle.data.setflags(write=False)
        return tensor

    def constant(semantic: Any, value: Any, dtype: Any) -> Any:
        if type(value) is not int or dtype is None:
            return plain(semantic, value, dtype)
        made = dtype.__dict__.setdefault("constants", {})
        found = made.get(value)
        if found is None:
            found = made[value] = read_only(plain(semantic, value, dtype))
        return found

    @cache
    def known_range(start: int, end: int) -> Any:
        return read_only(plain_range(interpreter.interpreter_semantic, start, end))

    def arange(semantic: Any, start: int, end: int, **rest: Any) -> Any:
        if any(value is not None for value in rest.values()):
            return plain_range(semantic, start, end, **rest)
        return known_range(start, end)

    def program_id(semantic: Any, axis: int) -> Any:
        if axis not in (0, 1, 2) or (place := semantic.builder.grid_idx) is None:
            return plain_id(semantic, axis)
        return constant(semantic, place[axis], tl.int32)

    TritonSemantic.scalar_constant, TritonSemantic.arange = constant, arange
    TritonSemantic.program_id = program_id


class _Shape(NamedTuple):
    of_type: core.tuple
    numel: int
    of_tensor: core.tuple
    num_elements: core.constexpr


def _describe_shapes_once() -> None:
    """Each block's type checks its shape and writes it into a name, each tensor wraps its shape in
    constants, and two operands of one shape are compared size by size: that took longer than the
    tensor's operation. Shapes are few, and never change."""
    described: dict[int, _Shape] = {}  # by the identity of ``of_type``
    plain_broadcast = TritonSemantic.broadcast_impl_value

    @cache
    def describe(sizes: tuple[int, ...]) -> _Shape:
        assert sizes, "a block has at least one dimension"
        shape, constants = core.tuple(list(sizes)), core.tuple([core.constexpr(s) for s in sizes])
        numel = validate_block_shape(list(sizes))
        return described.setdefault(
            id(shape), _Shape(shape, numel, constants, core.constexpr(math.prod(sizes)))
        )

    def block(kind: Any, element_ty: Any, shape: Any) -> None:
        found = described.get(id(shape))
        found = found or describe(tuple(core._unwrap_if_constexpr(s) for s in shape))
        kind.element_ty, kind.shape, kind.numel = element_ty, found.of_type, found.numel

    scalar = core.tuple([]), core.constexpr(1)

    def tensor(made: Any, handle: Any, type: Any) -> None:
        made.handle, made.type, made.dtype = handle, type, type.scalar
        found = described[id(type.shape)] if type.is_block() else None
        made.shape, made.numel = (found.of_tensor, found.num_elements) if found else scalar

    def broadcast(semantic: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape is rhs.type.shape:
            return lhs, rhs
        return plain_broadcast(semantic, lhs, rhs)

    core.block_type.name = property(lambda kind: f"<{kind.shape}, {kind.element_ty}>")
    core.block_type.__init__, core.tensor.__init__ = block, tensor
    TritonSemantic.broadcast_impl_value = broadcast


def _reduce_whole_planes() -> None:
    """A reduction by a function of ours calls it for each element, and each of its operations goes
    through all of the language's checks; call it for each index of the axis, with all others at
    once, as numpy's arrays: the same sums in the same order. NOTE: such a function must consist of
    operators."""
    plain = interpreter.ReduceOps.generic_reduce

    def reduce(op: Any, blocks: Any) -> list[Any]:
        kind = blocks[0].dtype
        if op.axis is None or kind not in (tl.float32, tl.int32):
            return plain(op, blocks)
        if any(block.dtype != kind for block in blocks):
            return plain(op, blocks)
        planes = [np.moveaxis(block.handle.data, op.axis, 0) for block in blocks]
        found: Any = [plane[0] for plane in planes]
        for each in zip(*(plane[1:] for plane in planes), strict=True):
            combined = op.combine_fn.fn(*found, *each)
            found = combined if isinstance(combined, tuple) else (combined,)
        if op.keep_dims:
            found = [np.expand_dims(each, op.axis) for each in found]
        return [op.to_tensor(each, kind) for each in found]

    interpreter.ReduceOps.generic_reduce = reduce


def _truncate_bfloat16() -> None:
    """To bfloat16 the interpreter drops a float32's lower bits, taking sign, exponent and mantissa
    apart; drop them in one call of numpy, and add zeros on the way back."""
    plain = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if rounding is None and (source, target) == (tl.float32, tl.bfloat16):
            return (data.view("u4") >> 16).astype("u2")
        if rounding is None and (source, target) == (tl.bfloat16, tl.float32):
            return data.astype("u4") << 16
        return plain(data, source, target, rounding)

    interpreter._convert_float = convert
