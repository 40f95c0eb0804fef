"""What numpy computes for an operator at once is what Triton's interpreter computes for it."""

import itertools
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

from engine.kernels.triton_dot import INTERPRETED
from tests.kernels import operators

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

ELEMENTS = (
    (tl.float32, "f4", [-1.5, 0.0, float("inf"), float("nan")]),
    (tl.bfloat16, "u2", [0, 0x3F80, 0xBF80, 0x7F80]),
    (tl.int32, "i4", [-7, 0, 2**31 - 200, 3]),
    (tl.int64, "i8", [-7, 0, 2**40, 3]),
    (tl.uint32, "u4", [0, 1, 2**32 - 1, 5]),
    (tl.int1, "?", [True, False, False, True]),
    (core.pointer_type(tl.bfloat16), "u8", [2**45, 8, 16, 4096]),
)
NUMBERS = (
    0, -3, 2, 2**30, 2**31, 2**40, 0.25, 1e300, 1e-40, float("-inf"), True,
    core.constexpr(5), core.constexpr(0.5), core.constexpr(-1),
)  # fmt: skip
BINARY = [
    *operators.ARITHMETIC, *operators.REFLECTED, *operators.COMPARISONS, *operators.LOGIC,
    *operators.SHIFTS, *operators.DIVISIONS, *operators.QUOTIENTS,
]  # fmt: skip


def blocks() -> list[Any]:
    """Of each kind a scalar, a block, and blocks that others are broadcast with."""
    found = []
    for kind, name, elements in ELEMENTS:
        row = np.array(elements, name)
        handle = interpreter.TensorHandle(row[:1], kind)
        found.append(core.tensor(handle, kind))
        for data in (row, row[1:3], row[:, None], np.stack([row, row[::-1]] * 2)):
            whole = core.block_type(kind, list(data.shape))
            found.append(core.tensor(interpreter.TensorHandle(data, kind), whole))
    return found


def outcome(compute: Any, *operands: Any) -> object:
    try:
        found = compute(*operands)
    except Exception as e:
        return type(e)
    data = found.handle.data
    return str(found.type), found.shape, data.dtype, data.shape, data.tobytes()


@pytest.mark.parametrize("name", BINARY)
def test_an_operator(name: str) -> None:
    plain, fast = operators.PLAIN[name], getattr(core.tensor, f"__{name}__")
    num_computed = 0
    for a in blocks():
        for b in [*blocks(), *NUMBERS]:
            expected = outcome(plain, a, b)
            assert outcome(fast, a, b) == expected, (name, str(a.type), str(getattr(b, "type", b)))
            num_computed += not isinstance(expected, type)
    assert num_computed > 100


@pytest.mark.parametrize("name", operators.EXTREMES)
def test_an_extreme(name: str) -> None:
    plain, fast = operators.PLAIN[name], getattr(tl, name)
    num_computed = 0
    for a in blocks():
        for b in [*blocks(), *NUMBERS]:
            expected = outcome(plain, a, b)
            assert outcome(fast, a, b) == expected, (name, str(a.type), str(getattr(b, "type", b)))
            num_computed += not isinstance(expected, type)
    assert num_computed > 100


def test_where() -> None:
    conditions = [each for each in blocks() if each.dtype is tl.int1]
    num_computed = 0
    for condition in conditions:
        for a in [*blocks(), *NUMBERS]:
            for b in [*blocks(), *NUMBERS]:
                expected = outcome(operators.PLAIN["where"], condition, a, b)
                assert outcome(tl.where, condition, a, b) == expected, [
                    str(getattr(each, "type", each)) for each in (condition, a, b)
                ]
                num_computed += not isinstance(expected, type)
    assert num_computed > 100


@pytest.mark.parametrize("index", [(slice(None), None), (None, slice(None)), None, (None, None)])
def test_new_axes(index: Any) -> None:
    for a in blocks():
        expected = outcome(operators.PLAIN["getitem"], a, index)
        assert outcome(core.tensor.__getitem__, a, index) == expected


@pytest.mark.parametrize("kind", [kind for kind, *_ in ELEMENTS])
def test_a_cast(kind: Any) -> None:
    for a in blocks():
        expected = outcome(operators.PLAIN["to"], a, kind)
        assert outcome(core.tensor.to, a, kind) == expected, (str(a.type), str(kind))


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, name) for kind, name, _ in ELEMENTS if not kind.is_ptr()]
)
def test_loads(kind: Any, number: str) -> None:
    memory = np.arange(64).astype(number)
    row = memory.ctypes.data + np.array([8, 0, 24, 40], np.uint64)
    alone = core.pointer_type(kind)
    pointers = [core.tensor(interpreter.TensorHandle(row[:1], alone), alone)]
    masks = [None, *(each for each in blocks() if each.dtype is tl.int1)]
    for data in (row, row[:, None], np.stack([row, row + np.uint64(8)] * 2)):
        whole = core.block_type(core.pointer_type(kind), list(data.shape))
        handle = interpreter.TensorHandle(data, core.pointer_type(kind))
        pointers.append(core.tensor(handle, whole))
    num_loaded = 0
    others = None, 0, 0.0, 7, 1.5, core.constexpr(0), blocks()[1]
    for pointer, mask, other in itertools.product(pointers, masks, others):
        expected = outcome(operators.PLAIN["load"], pointer, mask, other)
        assert outcome(tl.load, pointer, mask, other) == expected, (str(pointer.type), other)
        num_loaded += not isinstance(expected, type)
    assert num_loaded > 20


@pytest.mark.parametrize(
    ("kind", "number", "elements"), [each for each in ELEMENTS if not each[0].is_ptr()]
)
def test_stores(kind: Any, number: str, elements: list[Any]) -> None:
    masks = [None, *(each for each in blocks() if each.dtype is tl.int1)]
    values = [each for each in blocks() if each.dtype in (kind, tl.int32, tl.float32)]
    num_stored = 0
    for value, mask in itertools.product(values, masks):
        found = []
        for store in (operators.PLAIN["store"], tl.store):
            memory = np.zeros(256, number)
            row = memory.ctypes.data + np.array([8, 0, 24, 40], np.uint64)
            alone = core.pointer_type(kind)
            pointers = [core.tensor(interpreter.TensorHandle(row[:1], alone), alone)]
            for data in (row, row[:, None], np.stack([row, row + np.uint64(64)] * 2)):
                whole = core.block_type(alone, list(data.shape))
                pointers.append(core.tensor(interpreter.TensorHandle(data, alone), whole))
            results: list[object] = []
            for pointer in pointers:
                memory[:] = 0
                try:
                    store(pointer, value, mask)
                    results.append(memory.tobytes())
                except Exception as e:
                    results.append(type(e))
            found.append(results)
        assert found[0] == found[1], (str(value.type), str(getattr(mask, "type", mask)))
        num_stored += sum(isinstance(each, bytes) for each in found[0])
    assert num_stored > 20
