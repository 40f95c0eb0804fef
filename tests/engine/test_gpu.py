"""Which GPU a name means, and how a shared one is divided."""

import pytest
import torch

from engine import gpu
from engine.errors import GpuMemoryHeld
from engine.gpu import Gpu
from transport.wire.layout import CacheLayout

GPUS = [Gpu(0, "GPU-1a2b"), Gpu(1, "GPU-1acc"), Gpu(2, "GPU-77ff")]
LAYOUT = CacheLayout("bfloat16", 64, 10, 2, 256, 30, 8192, 3, 32, 128, 128)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("", [0, 1, 2]), ("1", [1]), ("GPU-77ff", [2]), ("gpu-1AC", [1]), ("GPU-7", [2])],
)
def test_a_gpu_is_named_by_number_or_the_beginning_of_its_uuid(wanted, expected) -> None:
    assert [each.index for each in gpu.named(wanted, GPUS)] == expected


@pytest.mark.parametrize("wanted", ["3", "GPU-1a", "H200"])
def test_a_name_of_none_or_several_is_refused_with_what_is_there(wanted) -> None:
    with pytest.raises(ValueError, match=r"^gpu: .*1 = GPU-1acc"):
        gpu.named(wanted, GPUS)


def test_the_gpu_may_be_named_by_either_setting_but_not_by_both_differently() -> None:
    assert gpu.gpu_name("cuda", "") == ""
    assert gpu.gpu_name("cuda:2", "") == "2"
    assert gpu.gpu_name("cuda", "GPU-1a2b") == "GPU-1a2b"
    with pytest.raises(ValueError, match=r"^gpu: '1' was asked for, and by device 'cuda:2'"):
        gpu.gpu_name("cuda:2", "1")
    for device in ("cuda:", "cuda:x", "cpu:0"):
        with pytest.raises(ValueError, match=r"^device: "):
            gpu.gpu_name(device, "")


def test_workers_that_share_a_gpu_divide_its_memory_whoever_comes_first(monkeypatch) -> None:
    total = 141 * GIB
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 20 * GIB)
    demand = gpu.CacheDemand(
        LAYOUT, 250_000, max_sampled=32, max_seq_len=1 << 30, part=gpu.GpuPart(2)
    )
    found = []
    for free in (120 * GIB, 55 * GIB):  # the first alone, the second beside the first
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, total))
        found.append(gpu.pools_that_fit(demand, None, 64).num_pages)
    slots_bytes = 64 * (LAYOUT.state_slot_bytes + 250_000 * gpu.TABLE_BYTES)
    sampled_bytes = 32 * 250_000 * (gpu.LOGITS_BYTES + gpu.SAMPLED_BYTES)
    left = total // 2 - 20 * GIB - demand.part.working_bytes - slots_bytes - sampled_bytes
    assert found[0] == found[1]
    assert 0 <= left // LAYOUT.page_bytes - found[0] <= 164 * 2**20 // LAYOUT.page_bytes + 1, (
        "but the probe"
    )


def test_a_model_too_large_for_its_part_of_the_gpu_is_refused_with_the_numbers(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (140 * GIB, 141 * GIB))
    gpu.require_gpu(69 * GIB, gpu.GpuPart())
    with pytest.raises(ValueError, match=r"2 workers share it, 70\.50 GiB each.*69\.00 GiB of we"):
        gpu.require_gpu(69 * GIB, gpu.GpuPart(2))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * GIB, 141 * GIB))
    with pytest.raises(GpuMemoryHeld, match=r"3\.00 GiB of 141\.00 GiB free.*nvidia-smi shows"):
        gpu.require_gpu(69 * GIB, gpu.GpuPart())
