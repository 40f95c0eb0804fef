"""Runs kernels written in Gluon on a CPU: their own source, with a thread for each group of warps.

Tensors are PyTorch's; pointers, shared memory and barriers are the classes below. What is
asynchronous on a GPU is so here, in the worst order: copies arrive in a random one, and products
read their operands only when they are waited for. So a stage that is read before it is full, or
filled before it is free, gives wrong results. A wait without end is an error.
"""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from triton.experimental.gluon import language as gluon_language
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

LIMIT_S = 60.0
"""The longest wait at a barrier."""
THREADS = 32
"""Threads of a warp."""
_OPTIONS = {"num_warps", "maxnreg", "launch_pdl"}
_here = threading.local()


@dataclass(frozen=True)
class Pointer:
    """Into a tensor: one place, or a tensor of them."""

    memory: torch.Tensor
    at: Any = 0

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.memory, self.at + offset)

    def __sub__(self, offset: Any) -> "Pointer":
        return self + -offset

    def __getitem__(self, index: Any) -> "Pointer":
        return Pointer(self.memory, self.at[index])

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(element_ty=self.memory.dtype)


@dataclass(frozen=True)
class Shared:
    data: torch.Tensor

    def index(self, place: Any) -> "Shared":
        return Shared(self.data[int(place)])

    def permute(self, order: Sequence[int]) -> "Shared":
        return Shared(self.data.permute(*order))


class Barrier:
    """PTX's ``mbarrier``: a phase ends when all have arrived, and all bytes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = self._pending = self._num_bytes = self._phase = 0

    def init(self, count: int) -> None:
        self._count = self._pending = count

    def add(self, arrivals: int, num_bytes: int) -> None:
        """``num_bytes`` are expected, or if negative, have arrived."""
        with self._changed:
            self._pending -= arrivals
            self._num_bytes += num_bytes
            assert self._pending >= 0, "more arrivals than the barrier counts"
            if self._pending == self._num_bytes == 0:
                self._phase, self._pending = self._phase + 1, self._count
                self._changed.notify_all()

    def wait(self, parity: int) -> None:
        with self._changed:
            ended = self._changed.wait_for(lambda: (self._phase - 1) & 1 == parity, LIMIT_S)
        if not ended:
            raise TimeoutError("a wait without end")


class Barriers(list[Barrier]):
    def index(self, place: Any) -> Barrier:
        return self[int(place)]


class CopyEngine:
    """Does one after another what it was given, in a random order."""

    def __init__(self) -> None:
        self._given: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._ends = False
        self._random = random.Random(0)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "CopyEngine":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join()

    def give(self, copy: Callable[[], None]) -> None:
        with self._changed:
            self._given.append(copy)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._given or self._ends)
                if not self._given:
                    return
                # Others may be given meanwhile, and be done before.
                self._changed.wait(self._random.random() * 1e-3)
                copy = self._given.pop(self._random.randrange(len(self._given)))
            copy()


@dataclass(frozen=True)
class Product:
    """Added to a sum when it is waited for."""

    sum: torch.Tensor
    x: Shared | torch.Tensor
    w: Shared

    def result(self) -> torch.Tensor:
        x = self.x.data if isinstance(self.x, Shared) else self.x
        return self.sum + (x.float() @ self.w.data.float()).to(self.sum.dtype)


class Emulated:
    """Stands in for a kernel of Gluon."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = in_python(kernel.fn)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        constants = {name: value for name, value in options.items() if name not in _OPTIONS}
        with CopyEngine() as engine:
            for program in product(*map(range, grid)):
                vars(_here).update(program=program, grid=grid, engine=engine, num_warps=4)
                self._kernel(*map(_argument, arguments), **constants)


def in_python(function: Any) -> FunctionType:
    """The Python function of a kernel or device function, with Gluon and Triton replaced."""
    known: dict[str, Any] = {}
    for name, value in function.__globals__.items():
        if name in _REPLACED:
            known[name] = _REPLACED[name]
        elif isinstance(value, gluon_language.constexpr):
            known[name] = value.value
        elif hasattr(value, "fn"):
            known[name] = _Late(value.fn)
        else:
            known[name] = value
    defaults = function.__defaults__
    return FunctionType(function.__code__, known, function.__name__, defaults, function.__closure__)


class _Late:
    """A device function, replaced when it is first called."""

    def __init__(self, function: Any) -> None:
        self._function, self._made = function, None

    def __call__(self, *arguments: Any) -> Any:
        self._made = self._made or in_python(self._function)
        return self._made(*arguments)


def _argument(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return Pointer(
            given.as_strided((given.untyped_storage().nbytes() // given.itemsize,), (1,), 0)
        )
    if isinstance(given, TensorDescriptor):
        return SimpleNamespace(of=given.base, layout=None, dtype=given.base.dtype)
    return given


def _bytes(of: torch.Tensor) -> torch.Tensor:
    """The same memory, in a type that PyTorch can index and copy on a CPU."""
    return of.view(torch.uint8) if of.itemsize == 1 else of


def _load(pointer: Pointer, mask: Any = True, other: Any = 0) -> torch.Tensor:
    at, mask = torch.broadcast_tensors(torch.as_tensor(pointer.at), torch.as_tensor(mask))
    values = _bytes(pointer.memory)[torch.where(mask, at, 0)].view(pointer.memory.dtype)
    return torch.where(mask, values, torch.as_tensor(other, dtype=values.dtype))


def _store(pointer: Pointer, values: torch.Tensor, mask: Any = True) -> None:
    at, mask = torch.broadcast_tensors(pointer.at, torch.as_tensor(mask))
    assert values.dtype == pointer.memory.dtype
    _bytes(pointer.memory)[at[mask]] = _bytes(values)[mask]


def _allocate(dtype: torch.dtype, shape: Sequence[int], layout: Any) -> Shared | Barriers | Barrier:
    if layout == "barriers" and len(shape) == 1:
        return Barrier()
    if layout == "barriers":
        return Barriers(Barrier() for _ in range(shape[0]))
    unknown = float("nan") if dtype.is_floating_point else 99
    return Shared(torch.full(tuple(shape), unknown).to(dtype))


def _warp_specialize(
    parts: Sequence[tuple[Any, Any]], num_warps: Sequence[int], _registers: Sequence[int]
) -> None:
    failures = list[BaseException]()
    mine = dict(vars(_here))

    def run(part: Any, arguments: Any, warps: int) -> None:
        vars(_here).update(mine, num_warps=warps, copies=[], outstanding=[])
        try:
            part(*arguments)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(*part, warps))
        for part, warps in zip(parts, (4, *num_warps), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _fetch(described: Any, corner: Sequence[Any], barrier: Barrier, into: Shared) -> None:
    (row, column), (rows, columns) = map(int, corner), into.data.shape

    def copy() -> None:
        found = _bytes(described.of)[row : row + rows, column : column + columns]
        _bytes(into.data)[: len(found)] = found
        _bytes(into.data)[len(found) :] = 0
        barrier.add(0, -into.data.numel() * into.data.itemsize)

    _here.engine.give(copy)


def _copy(into: Shared, pointers: Pointer) -> None:
    _here.copies.append(lambda: _bytes(into.data).copy_(_bytes(_load(pointers))))


def _arrive_behind_copies(barrier: Barrier, increment_count: bool) -> None:
    assert not increment_count
    copies, threads = list(_here.copies), THREADS * _here.num_warps
    _here.copies.clear()

    def arrive() -> None:
        for each in copies:
            each()
        barrier.add(threads, 0)

    _here.engine.give(arrive)


def _multiply(
    x: Shared | torch.Tensor, w: Shared, b_sum: torch.Tensor, is_async: bool, use_acc: bool = True
) -> Product:
    assert is_async
    begun = Product(b_sum if use_acc else torch.zeros_like(b_sum), x, w)
    _here.outstanding.append(begun)
    return begun


def _wait_for_products(num_outstanding: int, deps: Sequence[Product | torch.Tensor]) -> Any:
    last = len(_here.outstanding) - num_outstanding
    done, _here.outstanding = _here.outstanding[:last], _here.outstanding[last:]
    results = []
    for each in deps:
        if isinstance(each, Product):
            assert any(each is known for known in done), "used before it is waited for"
            each = each.result()
        results.append(each)
    return tuple(results) if len(results) > 1 else results[0]


def _quantised(b_x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    b_amax = b_x.abs().amax(1).clamp_min(1e-12)
    b_scaled = (b_x * (448.0 / b_amax)[:, None]).clamp(-448.0, 448.0)
    return b_scaled.to(torch.float8_e4m3fn), b_amax / 448.0


def _split(b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return b[..., 0], b[..., 1]


def _made(*_: Any, **__: Any) -> None:
    """A layout, which has no meaning here."""


_LANGUAGE = SimpleNamespace(
    constexpr=int,
    int32=torch.int32,
    int64=torch.int64,
    float32=torch.float32,
    program_id=lambda axis: _here.program[axis],
    num_programs=lambda axis: _here.grid[axis],
    num_warps=lambda: _here.num_warps,
    load=_load,
    store=_store,
    arange=lambda start, end, _: torch.arange(start, end),
    zeros=lambda shape, dtype, _: torch.zeros(shape, dtype=dtype),
    full=lambda shape, value, dtype, _: torch.full(shape, value, dtype=dtype),
    where=torch.where,
    minimum=lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    cdiv=lambda a, b: -(-a // b),
    maximum=torch.maximum,
    max=torch.amax,
    sum=torch.sum,
    exp=torch.exp,
    exp2=torch.exp2,
    log2=torch.log2,
    reshape=torch.reshape,
    permute=torch.permute,
    split=_split,
    convert_layout=lambda b, _: b,
    static_range=range,
    allocate_shared_memory=_allocate,
    warp_specialize=_warp_specialize,
    NVMMADistributedLayout=_made,
    BlockedLayout=_made,
    DotOperandLayout=_made,
    SliceLayout=_made,
)
_REPLACED = {
    "gl": _LANGUAGE,
    "tl": _LANGUAGE,
    "mbarrier": SimpleNamespace(
        MBarrierLayout=lambda: "barriers",
        init=lambda barrier, count: barrier.init(count),
        wait=lambda barrier, parity: barrier.wait(parity),
        arrive=lambda barrier, pred=True: barrier.add(1, 0) if pred else None,
        expect=lambda barrier, num_bytes: barrier.add(1, num_bytes),
    ),
    "tma": SimpleNamespace(async_copy_global_to_shared=_fetch),
    "async_copy": SimpleNamespace(
        async_copy_global_to_shared=_copy, mbarrier_arrive=_arrive_behind_copies
    ),
    "fence_async_shared": lambda: None,
    "warpgroup_mma": _multiply,
    "warpgroup_mma_wait": _wait_for_products,
    "wait_for_inputs": lambda _: None,
    "quantised": _quantised,
}
