"""The division of a multiprocessor's memory that decode kernels ask for."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from triton import knobs

from engine.kernels.shared_memory import PREFERRED_CARVEOUT, most_shared_memory

LOADED = (None, 123, "a_kernel", (), "key")


def driver(monkeypatch: pytest.MonkeyPatch, error: int) -> list[tuple[Any, ...]]:
    """Stands in for libcuda; what it is called with."""
    calls: list[tuple[Any, ...]] = []

    def set_attribute(function: ctypes.c_void_p, attribute: int, value: int) -> int:
        calls.append((function.value, attribute, value))
        return error

    library = SimpleNamespace(cuFuncSetAttribute=set_attribute)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    return calls


def test_kernels_loaded_within_prefer_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = driver(monkeypatch, 0)
    with most_shared_memory():
        knobs.runtime.kernel_load_end_hook(*LOADED)
    knobs.runtime.kernel_load_end_hook(*LOADED)
    assert calls == [(123, PREFERRED_CARVEOUT, 100)]


def test_a_refusal_names_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, 400)
    with most_shared_memory(), pytest.raises(RuntimeError, match="a_kernel: CUDA error 400"):
        knobs.runtime.kernel_load_end_hook(*LOADED)
