"""Loader threads, with the GPU's side of a lane left out."""

import os
from pathlib import Path
from threading import local

import pytest
import torch

from engine import staging
from engine.checkpoint import Entry
from engine.plan import Place


def test_loader_threads_touch_no_other_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = local()

    class Lane:
        def __init__(self, device: torch.device) -> None:
            assert getattr(current, "device", torch.device("cuda", 0)) == device

        def move(self, descriptor: int, offset: int, destination: torch.Tensor) -> int:
            return os.preadv(descriptor, [memoryview(destination.numpy())], offset)

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(current, "device", device))
    monkeypatch.setattr(staging, "_Lane", Lane)
    stored = torch.arange(20.0)
    file = tmp_path / "weights"
    file.write_bytes(bytes(stored.numpy()))
    into, done = torch.zeros(20), list[int]()
    entry = Entry("weight", file, (20,), "F32", 0)
    staging.copy_to_gpu([(entry, Place(into, (20,)))], torch.device("cuda", 3), done.append)
    assert torch.equal(into, stored)
    assert done == [80]
