"""Loading to a GPU, with the GPU's side of a lane left out."""

import os
from pathlib import Path
from threading import local
from typing import ClassVar

import pytest
import torch

from engine.loading import staging
from engine.loading.checkpoint import Entry
from engine.loading.plan import Place
from engine.quantized.format import Stored
from engine.quantized.packed import Packed, matrices
from engine.quantized.scaled import PerRow


class Lane:
    """Reads to where a GPU would be. ``waited_for``: the events that each copy comes after."""

    waited_for: ClassVar[list[object]] = []

    def __init__(self, device: torch.device) -> None:
        pass

    def move(self, descriptor: int, offset: int, destination: torch.Tensor, after: object) -> int:
        self.waited_for.append(after)
        return os.preadv(descriptor, [memoryview(destination.numpy())], offset)


class Gpu:
    """What loading asks of a GPU; counts the waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_waits = self.num_events = 0
        Lane.waited_for.clear()
        empty = torch.empty
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)
        monkeypatch.setattr(torch, "empty", lambda *size, dtype, device: empty(*size, dtype=dtype))
        monkeypatch.setattr(staging, "_Lane", Lane)

    def synchronize(self) -> None:
        self.num_waits += 1

    def record_event(self) -> str:
        self.num_events += 1
        return f"event {self.num_events}"


@pytest.mark.parametrize(("kept_bytes", "num_waits"), [(1 << 20, 1), (40, 5), (0, 15)])
def test_copies_of_small_tensors_are_waited_for_together(
    kept_bytes: int, num_waits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(staging, "MAX_KEPT_BYTES", kept_bytes)
    stored = torch.arange(15 * 8).bfloat16().view(15, 8)
    file = tmp_path / "scales"
    file.write_bytes(bytes(stored.view(torch.uint8).numpy()))
    into = torch.zeros(15, 8)
    matched = [(Entry(str(i), file, (8,), "BF16", 16 * i), Place(into[i], (8,))) for i in range(15)]
    done = list[int]()
    staging.copy_to_gpu(matched, torch.device("cuda"), done.append)
    assert torch.equal(into, stored.float())
    assert done == [16] * 15
    assert gpu.num_waits == num_waits
    assert sorted(map(str, Lane.waited_for)) == sorted(f"event {i + 1}" for i in range(15))


def test_what_is_copied_straight_to_its_place_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch)
    file = tmp_path / "weights"
    file.write_bytes(bytes(torch.ones(8).bfloat16().view(torch.uint8).numpy()))
    into = torch.zeros(8, dtype=torch.bfloat16)
    entry = Entry("x", file, (8,), "BF16", 0)
    staging.copy_to_gpu([(entry, Place(into, (8,)))], torch.device("cuda"), lambda num_bytes: None)
    assert into.eq(1).all()
    assert (Lane.waited_for, gpu.num_events) == ([None], 0)


def test_a_quantised_matrix_is_put_together_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gpu(monkeypatch)
    numbers, scales = torch.arange(-12, 12).to(torch.int8).view(3, 8), torch.tensor([0.5, 2.0, 3.0])
    file = tmp_path / "weights"
    file.write_bytes(numbers.numpy().tobytes() + scales.numpy().tobytes())
    entries = [
        Entry("x.weight_scale", file, (3, 1), "F32", 24), Entry("x.weight", file, (3, 8), "I8", 0)
    ]  # fmt: skip
    (packed,) = matrices(entries, Stored("int8", (PerRow("I8"),)))
    assert isinstance(packed, Packed)
    into, done = torch.zeros(3, 8), list[int]()
    places = list(packed.targets(Place(into, (3, 8))))
    staging.copy_to_gpu(places, torch.device("cuda"), done.append)
    assert torch.equal(into, numbers * scales[:, None])
    assert sum(done) == 24 + 12


def test_loader_threads_touch_no_other_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = local()

    class OwnLane(Lane):
        def __init__(self, device: torch.device) -> None:
            assert getattr(current, "device", torch.device("cuda", 0)) == device

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(current, "device", device))
    monkeypatch.setattr(staging, "_Lane", OwnLane)
    stored = torch.arange(20.0)
    file = tmp_path / "weights"
    file.write_bytes(bytes(stored.numpy()))
    into, done = torch.zeros(20), list[int]()
    entry = Entry("weight", file, (20,), "F32", 0)
    staging.copy_to_gpu([(entry, Place(into, (20,)))], torch.device("cuda", 3), done.append)
    assert torch.equal(into, stored)
    assert done == [80]
