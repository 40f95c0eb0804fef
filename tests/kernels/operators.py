"""Operators and loads of Triton's tensors in a few calls of numpy, for the interpreter: it takes
ten times as long to check and convert two operands as to compute with them.

Only operands of the types that kernels mostly calculate with are computed here. All others, and
what overflows, are left to the interpreter. tests/kernels/test_operators.py compares the two.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

Operator = Callable[[Any, Any], Any]

ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
REFLECTED = {"radd": np.add, "rmul": np.multiply}
COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or}
CASTS: dict[tuple[Any, Any], Callable[[Any], Any]] = {
    (tl.int32, tl.int64): lambda data: data.astype(np.int64),
    (tl.int64, tl.int32): lambda data: data.astype(np.int32),
    (tl.int1, tl.int32): lambda data: data.astype(np.int32),
    (tl.int32, tl.float32): lambda data: data.astype(np.float32),
    (tl.bfloat16, tl.float32): lambda data: (data.astype(np.uint32) << 16).view(np.float32),
    (tl.float32, tl.bfloat16): lambda data: (data.view(np.uint32) >> 16).astype(np.uint16),
}
_CASTS_BY_ID = {(id(source), id(target)): cast for (source, target), cast in CASTS.items()}
PLAIN: dict[str, Operator] = {}
"""The interpreter's own."""

_MIN_INT, _MAX_INT = -(2**31), 2**31 - 1
_COLUMN, _ROW = (slice(None), None), (None, slice(None))


def install() -> None:
    """Change the tensors of this process. To be called once."""
    for name, compute in (ARITHMETIC | REFLECTED).items():
        _replace(name, _arithmetic(compute))
    for name, compute in COMPARISONS.items():
        _replace(name, _comparison(compute))
    for name, compute in LOGIC.items():
        _replace(name, _logic(compute))
    _replace("getitem", _with_new_axes)
    PLAIN["to"] = partial(core.tensor.to, _semantic=interpreter.interpreter_semantic)
    core.tensor.to = _to
    PLAIN["load"] = partial(tl.load, _semantic=interpreter.interpreter_semantic)
    tl.load = core.load = _load


def _replace(name: str, fast: Operator) -> None:
    """Let the interpreter compute only what ``fast`` returns None for."""
    builtin, semantic = getattr(core.tensor, f"__{name}__"), interpreter.interpreter_semantic
    plain = PLAIN[name] = partial(builtin, _semantic=semantic)

    def operator(a: Any, b: Any) -> Any:
        found = fast(a, b)
        return plain(a, b) if found is None else found

    setattr(core.tensor, f"__{name}__", operator)


def _to(a: Any, kind: Any, *rest: Any, **named: Any) -> Any:
    if rest or named:
        return PLAIN["to"](a, kind, *rest, **named)
    if kind is a.dtype:
        return a
    cast = _CASTS_BY_ID.get((id(a.dtype), id(kind)))
    return _result(cast(a.handle.data), kind, a, a) if cast else PLAIN["to"](a, kind)


def _load(pointer: Any, mask: Any = None, other: Any = None, **how: Any) -> Any:
    found = None if how else _loaded(pointer, mask, other)
    return PLAIN["load"](pointer, mask, other, **how) if found is None else found


def _loaded(pointer: Any, mask: Any, other: Any) -> Any:
    """Of a pointer; or of a block of pointers, with a mask that is not larger: zeros where it is
    False."""
    if type(pointer) is not core.tensor or not pointer.dtype.is_ptr():
        return None
    kind, addresses = pointer.dtype.element_ty, pointer.handle.data
    if type(pointer.type) is not core.block_type and not (mask is None and other is None):
        return None
    is_zero = other is None or (type(other) in (int, float) and other == 0)
    if kind is tl.int1 or not is_zero:
        return None
    if mask is None:
        if other is not None:
            return None
        known = np.ones(addresses.shape, bool)
    elif type(mask) is core.tensor and mask.dtype is tl.int1:
        known = mask.handle.data
        if known.shape != addresses.shape:
            if np.broadcast_shapes(known.shape, addresses.shape) != addresses.shape:
                return None
            known = np.broadcast_to(known, addresses.shape)
    else:
        return None
    numbers = interpreter._get_np_dtype(kind)
    zeros = np.zeros(addresses.shape, numbers)
    data = interpreter._interpreter.load(addresses, known, zeros, numbers)
    return _result(data, kind, pointer, pointer)


def _arithmetic(compute: Any) -> Operator:
    def fast(a: Any, b: Any) -> Any:
        if compute is np.add and (
            a.dtype.is_ptr() or (type(b) is core.tensor and b.dtype.is_ptr())
        ):
            return _address(a, b)
        kind, y = _second(a, b)
        if kind is None:
            return None
        if kind is not tl.int32:
            return _result(compute(a.handle.data, y), kind, a, b)
        wide = compute(a.handle.data, y, dtype=np.int64)
        if wide.min() < _MIN_INT or wide.max() > _MAX_INT:
            return None
        return _result(wide.astype(np.int32), kind, a, b)

    return fast


def _comparison(compute: Any) -> Operator:
    def fast(a: Any, b: Any) -> Any:
        kind, y = _second(a, b)
        if kind is None or type(y) is float:
            return None
        return _result(compute(a.handle.data, y), tl.int1, a, b)

    return fast


def _logic(compute: Any) -> Operator:
    def fast(a: Any, b: Any) -> Any:
        if a.dtype is tl.int1:
            kind, y = tl.int1, b.handle.data if getattr(b, "dtype", None) is tl.int1 else None
        else:
            kind, y = _second(a, b)
        if y is None or kind is tl.float32:
            return None
        return _result(compute(a.handle.data, y), kind, a, b)

    return fast


def _second(a: Any, b: Any) -> tuple[Any, Any]:
    """The type of a result of ``a`` and ``b``, and ``b`` for numpy; or (None, None)."""
    kind = a.dtype
    if kind is not tl.int32 and kind is not tl.int64 and kind is not tl.float32:
        return None, None
    if type(b) is core.constexpr:
        b = b.value
    if type(b) is core.tensor:
        if b.dtype is kind:
            return kind, b.handle.data
        if kind is not tl.float32 and (b.dtype is tl.int32 or b.dtype is tl.int64):
            return tl.int64, b.handle.data
    elif (type(b) is int and _MIN_INT <= b <= _MAX_INT) or (
        type(b) is float and kind is tl.float32
    ):
        return kind, b
    return None, None


def _address(a: Any, b: Any) -> Any:
    """Of a pointer and a signed offset."""
    if not a.dtype.is_ptr():
        a, b = b, a
    offset = b.value if type(b) is core.constexpr else b
    if type(offset) is core.tensor:
        if offset.dtype is not tl.int32 and offset.dtype is not tl.int64:
            return None
        offset = offset.handle.data.astype(np.uint64)
    elif type(offset) is int and 0 <= offset <= _MAX_INT:
        offset = np.uint64(offset)
    else:
        return None
    num_bytes = max(1, a.dtype.element_ty.primitive_bitwidth // 8)
    return _result(a.handle.data + offset * np.uint64(num_bytes), a.dtype, a, b)


def _with_new_axes(a: Any, index: Any) -> Any:
    known = type(index) is tuple and index in (_COLUMN, _ROW)
    if known and type(a.type) is core.block_type and len(a.type.shape) == 1:
        return _result(a.handle.data[index], a.dtype, a, a)
    return None


def _result(data: Any, kind: Any, a: Any, b: Any) -> Any:
    """Of an operation on ``a`` and ``b``, which numpy has broadcast as Triton does."""
    is_block = type(a.type) is core.block_type or type(getattr(b, "type", None)) is core.block_type
    shape = data.shape if is_block else None
    made: dict[Any, _Made] = kind.__dict__.setdefault("made", {})
    found = made.get(shape)
    if found is None or found.numbers is not data.dtype:
        handle = interpreter.TensorHandle(data, kind)  # this checks the size of its numbers
        tensor = core.tensor(handle, core.block_type(kind, list(data.shape)) if is_block else kind)
        made[shape] = _Made(data.dtype, tensor.type, tensor.shape, tensor.numel)
        return tensor
    handle, tensor = _bare(interpreter.TensorHandle), _bare(core.tensor)
    handle.data, handle.dtype, handle.attr = data, kind, {}
    tensor.handle, tensor.dtype = handle, kind
    tensor.type, tensor.shape, tensor.numel = found.of_type, found.shape, found.numel
    return tensor


class _Made(NamedTuple):
    """What all tensors of one type of elements and one shape have in common."""

    numbers: np.dtype[Any]
    of_type: Any
    shape: Any
    numel: Any


_bare: Callable[[type], Any] = object.__new__
