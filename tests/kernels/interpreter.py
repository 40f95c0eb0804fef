"""Triton's interpreter, with bfloat16 in ``tl.dot``, and faster where its own bookkeeping takes
longer than the kernel: the results and the checks are the same."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def prepare() -> None:
    """Change the interpreter of this process. To be called once."""
    _multiply_bfloat16()
    _patch_language_once_a_launch()
    _check_overflow_in_numpy()
    _look_up_types_once()


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
