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
SHIFTS = {
    "lshift": np.left_shift, "rshift": np.right_shift, "rlshift": lambda a, b: np.left_shift(b, a),
}  # fmt: skip
DIVISIONS = {"floordiv": lambda a, b: (a - np.fmod(a, b)) // b, "mod": np.fmod}
QUOTIENTS = {"truediv": np.divide, "rtruediv": lambda a, b: np.divide(b, a)}
EXTREMES = {"maximum": np.maximum, "minimum": np.minimum}
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
_EXACT = (0.0, float("inf"), float("-inf"))
_COLUMN, _ROW = (slice(None), None), (None, slice(None))


def install() -> None:
    """Change the tensors of this process. To be called once."""
    for name, compute in (ARITHMETIC | REFLECTED).items():
        _replace(name, _arithmetic(compute))
    for name, compute in COMPARISONS.items():
        _replace(name, _comparison(compute))
    for name, compute in LOGIC.items():
        _replace(name, _logic(compute))
    for name, compute in (SHIFTS | DIVISIONS).items():
        _replace(name, _of_whole_numbers(compute))
    for name, compute in QUOTIENTS.items():
        _replace(name, _quotient(compute))
    _replace("getitem", _with_new_axes)
    for name, compute in EXTREMES.items():
        _replace_function(name, _extreme(compute))
    _replace_function("where", _where)
    PLAIN["to"] = partial(core.tensor.to, _semantic=interpreter.interpreter_semantic)
    core.tensor.to = _to
    PLAIN["store"] = partial(tl.store, _semantic=interpreter.interpreter_semantic)
    tl.store = core.store = _store
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


def _replace_function(name: str, fast: Callable[..., Any]) -> None:
    builtin = getattr(tl, name)
    plain = PLAIN[name] = partial(builtin, _semantic=interpreter.interpreter_semantic)

    def function(*operands: Any, **how: Any) -> Any:
        found = None if how else fast(*operands)
        return plain(*operands, **how) if found is None else found

    for module in (tl, core):
        setattr(module, name, function)


def _to(a: Any, kind: Any, *rest: Any, **named: Any) -> Any:
    if rest or named:
        return PLAIN["to"](a, kind, *rest, **named)
    if kind is a.dtype:
        return a
    cast = _CASTS_BY_ID.get((id(a.dtype), id(kind)))
    return _result(cast(a.handle.data), kind, a, a) if cast else PLAIN["to"](a, kind)


def _store(pointer: Any, value: Any, mask: Any = None, **how: Any) -> Any:
    if how or not _stored(pointer, value, mask):
        PLAIN["store"](pointer, value, mask, **how)


def _stored(pointer: Any, value: Any, mask: Any) -> bool:
    """Whether this was a block of pointers and one of their numbers, with a mask as large."""
    if type(pointer) is not core.tensor or type(value) is not core.tensor:
        return False
    if not pointer.dtype.is_ptr() or pointer.dtype.element_ty is not value.dtype:
        return False
    places, data = pointer.handle.data, value.handle.data
    if value.dtype is tl.int1 or type(pointer.type) is not core.block_type:
        return False
    if mask is None:
        known = np.ones(places.shape, bool)
    elif type(mask) is core.tensor and mask.dtype is tl.int1:
        known = mask.handle.data
    else:
        return False
    if data.shape != places.shape or known.shape != places.shape:
        return False
    interpreter._interpreter.store(places, data, known)
    return True


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


def _of_whole_numbers(compute: Any) -> Operator:
    def fast(a: Any, b: Any) -> Any:
        kind, y = _second(a, b)
        if kind is None or kind is tl.float32:
            return None
        return _result(compute(a.handle.data, y), kind, a, b)

    return fast


def _quotient(compute: Any) -> Operator:
    def fast(a: Any, b: Any) -> Any:
        y = _number(b, tl.float32) if a.dtype is tl.float32 else None
        return None if y is None else _result(compute(a.handle.data, y), tl.float32, a, b)

    return fast


def _extreme(compute: Any) -> Operator:
    def fast(a: Any, b: Any) -> Any:
        if type(a) is not core.tensor or (a.dtype is not tl.int32 and a.dtype is not tl.float32):
            return None
        y = _number(b, a.dtype)
        return None if y is None else _result(compute(a.handle.data, y), a.dtype, a, b)

    return fast


def _where(condition: Any, a: Any, b: Any) -> Any:
    """Of two tensors of one type, or of a tensor and a number of its type."""
    if type(condition) is not core.tensor or condition.dtype is not tl.int1:
        return None
    tensors = [each for each in (a, b) if type(each) is core.tensor]
    if not tensors:
        return None
    kind = tensors[0].dtype
    x, y = _number(a, kind), _number(b, kind)
    if x is None or y is None:
        return None
    blocks = [each for each in tensors if type(each.type) is core.block_type]
    data = np.where(condition.handle.data, x, y)
    return _result(data, kind, condition, blocks[0] if blocks else condition)


def _number(value: Any, kind: Any) -> Any:
    """numpy's numbers of a tensor of this type, or of a number that needs no check; or None."""
    if type(value) is core.constexpr:
        value = value.value
    if type(value) is core.tensor:
        return value.handle.data if value.dtype is kind else None
    if (
        kind is tl.float32
        and type(value) is float
        and (value in _EXACT or 1e-30 < abs(value) < 1e30)
    ):
        return np.float32(value)
    if kind is tl.int32 and type(value) is int and _MIN_INT <= value <= _MAX_INT:
        return np.int32(value)
    return None


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
