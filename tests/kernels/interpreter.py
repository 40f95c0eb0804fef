"""Triton's interpreter, with bfloat16 in ``tl.dot``, and faster where its own bookkeeping takes
longer than the kernel: the results and the checks are the same."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton._utils import validate_block_shape
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def prepare() -> None:
    """Change the interpreter of this process. To be called once."""
    _multiply_bfloat16()
    _patch_language_once_a_launch()
    _check_overflow_in_numpy()
    _look_up_types_once()
    _describe_shapes_once()
    _reduce_whole_planes()
    _truncate_bfloat16()


def _multiply_bfloat16() -> None:
    """``tl.dot`` multiplies the bits of bfloat16 operands as integers; give it their values."""
    plain = interpreter.InterpreterBuilder.create_dot

    def widened(handle: interpreter.TensorHandle) -> interpreter.TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype("u4") << 16).view("f4"), tl.float32)

    def dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain(builder, widened(a), widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = dot


def _patch_language_once_a_launch() -> None:
    """Every call of a device function patches ``triton.language`` again, as its launch has done;
    let only the first call from each module do so."""
    plain_patch, plain_launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[str] = set()

    def patch(fn: Callable[..., Any]) -> interpreter._LangPatchScope:
        if fn.__module__ in patched:
            return interpreter._LangPatchScope()
        patched.add(fn.__module__)
        return plain_patch(fn)

    def launch(executor: interpreter.GridExecutor, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        try:
            plain_launch(executor, *args, **kwargs)
        finally:
            patched.clear()

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch, launch


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
    """numpy's type for one of the language's: a table is built for every look-up."""
    plain = interpreter._get_np_dtype
    of_scalar = cache(plain)

    def look_up(kind: Any) -> Any:
        scalar = kind.scalar
        return plain(kind) if isinstance(scalar, tl.pointer_type) else of_scalar(scalar)

    interpreter._get_np_dtype = look_up


def _describe_shapes_once() -> None:
    """Each block's type checks its shape and writes it into a name, and each tensor wraps its shape
    in constants: that took longer than the tensor's operation. Shapes are few, and never change."""

    @cache
    def checked(shape: tuple[int, ...]) -> tuple[core.tuple, int]:
        assert shape, "a block has at least one dimension"
        return core.tuple(list(shape)), validate_block_shape(list(shape))

    @cache
    def constants(shape: tuple[int, ...]) -> tuple[core.tuple, core.constexpr]:
        return core.tuple([core.constexpr(s) for s in shape]), core.constexpr(math.prod(shape))

    def block(kind: Any, element_ty: Any, shape: Any) -> None:
        kind.element_ty = element_ty
        kind.shape, kind.numel = checked(tuple(core._unwrap_if_constexpr(s) for s in shape))

    def tensor(made: Any, handle: Any, type: Any) -> None:
        made.handle, made.type, made.dtype = handle, type, type.scalar
        made.shape, made.numel = constants(tuple(type.shape) if type.is_block() else ())

    core.block_type.name = property(lambda kind: f"<{kind.shape}, {kind.element_ty}>")
    core.block_type.__init__, core.tensor.__init__ = block, tensor


def _reduce_whole_planes() -> None:
    """A reduction by a function of ours calls it for each element; call it for each index of the
    axis, with all others at once: the same sums in the same order. NOTE: such a function must not
    branch on its arguments."""
    plain = interpreter.ReduceOps.generic_reduce

    def reduce(op: Any, blocks: Any) -> list[Any]:
        if op.axis is None:
            return plain(op, blocks)
        kinds = [block.dtype for block in blocks]
        planes = [np.moveaxis(block.handle.data, op.axis, 0) for block in blocks]

        def tensors(arrays: Any) -> list[Any]:
            return [op.to_tensor(a, kind) for a, kind in zip(arrays, kinds, strict=True)]

        total = tensors(plane[0] for plane in planes)
        for i in range(1, len(planes[0])):
            total = op.combine_fn.fn(*total, *tensors(plane[i] for plane in planes))
        found = [each.handle.data.reshape(planes[0].shape[1:]) for each in total]
        if op.keep_dims:
            found = [np.expand_dims(each, op.axis) for each in found]
        return tensors(found)

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
