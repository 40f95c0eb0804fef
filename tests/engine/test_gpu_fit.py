"""What is wrong with a GPU is said with the numbers, before anything is loaded."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine import gpu
from engine.cache.pool_sizes import sized_cache
from engine.cache.state_ring import ring_bytes
from engine.config import MAX_DECODE_ROWS, SAMPLED_AT_ONCE, EngineConfig
from engine.errors import GpuMemoryHeld
from engine.model.registry import read_config
from engine.window_pages import SPARE_PAGES
from tests.engine.checkpoints import checkpoint
from transport.copy.region import Region
from transport.wire.layout import CacheLayout, PoolSize

GIB = 1 << 30
FULL_SIZE = Path(__file__).parents[2] / "bench/models/qwen3.5-35b-a3b"


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A free H200, as far as torch can tell."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (139 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return monkeypatch


def test_a_fit_gpu_is_accepted(hopper: pytest.MonkeyPatch) -> None:
    gpu.require_gpu(69 * GIB, gpu.GpuPart())


def test_no_gpu_or_a_driver_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(ValueError, match=r"no usable CUDA GPU.*CUDA 13\.0, see nvidia-smi"):
        gpu.visible_gpus()
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ValueError, match=r"no usable CUDA GPU.*built for the CPU"):
        gpu.visible_gpus()


def test_an_architecture_that_is_too_old(hopper: pytest.MonkeyPatch) -> None:
    hopper.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    hopper.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(ValueError, match=r"T4 has compute capability 7\.5.*need 8\.0 \(Ampere\)"):
        gpu.require_gpu(1, gpu.GpuPart())


def test_ampere_takes_weights_in_bfloat16_only(
    hopper: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hopper.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    hopper.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    gpu.require_gpu(1, gpu.GpuPart())
    assert "8.0: kernels compile for it, but neither speed nor results were" in caplog.text
    with pytest.raises(ValueError, match=r"A100 .* 8\.0, quantised weights need 8\.9"):
        gpu.require_gpu(1, gpu.GpuPart(), quantised=True)


def test_hopper_starts_without_a_warning(
    hopper: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.require_gpu(1, gpu.GpuPart(), quantised=True)
    assert not caplog.records


@pytest.mark.parametrize("capability", [(8, 9), (10, 0), (12, 0)])
def test_ada_and_blackwell_start_with_a_warning(
    hopper: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capability: tuple[int, int]
) -> None:
    hopper.setattr(torch.cuda, "get_device_capability", lambda: capability)
    gpu.require_gpu(1, gpu.GpuPart(), quantised=True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(("total", "error"), [(140, GpuMemoryHeld), (76, ValueError)])
def test_a_gpu_too_small_or_already_full(
    hopper: pytest.MonkeyPatch, total: int, error: type[Exception]
) -> None:
    hopper.setattr(torch.cuda, "mem_get_info", lambda: (20 * GIB, total * GIB))
    message = rf"20\.00 GiB of {total}\.00 GiB free, the model needs 69\.00 GiB.*8\.00 GiB to work"
    with pytest.raises(error, match=message):
        gpu.require_gpu(69 * GIB, gpu.GpuPart())


def test_pages_take_what_is_left(hopper: pytest.MonkeyPatch) -> None:
    from engine.model.registry import read_config

    layout = read_config(checkpoint("per_expert")).cache_layout("bfloat16", 64)
    probe = Region.of_probe(layout).size_bytes
    slot_bytes = layout.state_slot_bytes + 300 * gpu.TABLE_BYTES
    sampled_bytes = 3 * 300 * (gpu.LOGITS_BYTES + gpu.SAMPLED_BYTES)
    free = 8 * GIB + probe + 4 * slot_bytes + sampled_bytes + 5 * layout.page_bytes + 7

    def pages(num_slots: int, max_seq_len: int) -> int:
        demand = gpu.CacheDemand(
            layout, 300, max_sampled=3, max_seq_len=max_seq_len, part=gpu.GpuPart()
        )
        return gpu.pools_that_fit(demand, None, num_slots).num_pages

    hopper.setattr(torch.cuda, "mem_get_info", lambda: (free, 140 * GIB))
    assert pages(4, 262_144) == 5
    assert pages(2, 64) == 2
    with pytest.raises(ValueError, match=r"num_state_slots: 999 slots take .* no page fits"):
        pages(999, 262_144)
    plan = gpu.memory_plan(GIB, layout, PoolSize(5, 4))
    assert "weights 1.00 GiB; 5 pages" in plan
    assert "= 320 tokens; 4 state slots" in plan


def left_for_cache(hopper: pytest.MonkeyPatch, num_bytes: int) -> None:
    taken = 8 * GIB + Region.of_probe(FULL).size_bytes
    hopper.setattr(torch.cuda, "mem_get_info", lambda: (num_bytes + taken, 140 * GIB))


FULL = CacheLayout("bfloat16", 64, 10, 2, 256, 30, 8192, 3, 32, 128, 128)
"""Of the full-size model."""
HELD = int(20.55 * GIB)
"""Bytes of its weights in NVFP4 with lm_head, and of a CUDA context."""
DEMAND = gpu.CacheDemand(FULL, 248_077, max_sampled=512, max_seq_len=262_144, part=gpu.GpuPart())


@pytest.mark.parametrize("gib", [1, 2.66, 6, 20, 36, 60, 300])
def test_state_slots_and_pages_divide_what_is_left(hopper: pytest.MonkeyPatch, gib: float) -> None:
    left_for_cache(hopper, int(gib * GIB))
    pools = gpu.pools_that_fit(DEMAND, None, None)
    slots, pages = pools.num_state_slots, pools.num_pages
    taken = slots * DEMAND.slot_bytes + DEMAND.sampled_bytes(slots) + pages * FULL.page_bytes
    assert taken <= gib * GIB
    assert slots == gpu.DEFAULT_SLOTS or taken > gib * GIB - 2 * FULL.page_bytes, "all of it"
    assert pages * FULL.page_size >= slots * gpu.TYPICAL_TOKENS
    assert (slots == gpu.DEFAULT_SLOTS) == (gib >= 36)
    assert bool(gpu.shortage(FULL, pools, small=False)) == (slots < gpu.DEFAULT_SLOTS)


def test_memory_for_sampling_is_kept_for_all_logits_and_one_block_of_rows() -> None:
    per_row = 248_077 * gpu.LOGITS_BYTES
    block = SAMPLED_AT_ONCE * 248_077 * gpu.SAMPLED_BYTES
    assert DEMAND.sampled_bytes(256) == 256 * per_row + block
    assert replace(DEMAND, max_drafts=3).sampled_bytes(256) == 512 * 2 * per_row + block
    assert replace(DEMAND, max_drafts=3).sampled_bytes(512) == 512 * 2 * per_row + block


@pytest.mark.parametrize(
    ("spread", "max_drafts", "entries"), [(True, 0, 1), (False, 3, 3), (True, 3, 4)]
)
def test_state_slots_have_a_ring_for_spread_steps_or_drafts(
    spread: bool, max_drafts: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    demands: list[gpu.CacheDemand] = []

    def pools_that_fit(demand: gpu.CacheDemand, *_: object) -> PoolSize:
        demands.append(demand)
        return PoolSize(1, 1)

    monkeypatch.setattr(gpu, "pools_that_fit", pools_that_fit)
    model = read_config(FULL_SIZE)
    config = EngineConfig(
        FULL_SIZE, None, None, device="cuda", spread=spread, max_drafts=max_drafts
    )
    sized_cache(
        config, model, FULL, 248_077, max_drafts, lambda n: torch.empty(n, dtype=torch.uint8)
    )
    plain = FULL.state_slot_bytes + 248_077 * gpu.TABLE_BYTES
    assert demands[0].slot_bytes == plain + ring_bytes(FULL, entries)
    assert (demands[0].spread_bytes > 0) == spread


def test_a_shortage_is_said_in_sequences_and_tokens() -> None:
    short = gpu.shortage(FULL, PoolSize(1600, 50), small=False)
    assert "at most 50 sequences at a time, 102400 tokens in all, 2048 each" in short
    assert "--quantize fp8" in short
    assert "--quantize" not in gpu.shortage(FULL, PoolSize(1600, 50), small=True)


def test_state_slots_beside_pages_that_are_given(hopper: pytest.MonkeyPatch) -> None:
    left_for_cache(hopper, 6 * GIB)
    slots = gpu.pools_that_fit(DEMAND, 2048, None).num_state_slots
    assert 1 < slots < gpu.DEFAULT_SLOTS
    taken = slots * DEMAND.slot_bytes + DEMAND.sampled_bytes(slots) + 2048 * FULL.page_bytes
    assert taken <= 6 * GIB < taken + DEMAND.slot_bytes + DEMAND.sampled_bytes(1)
    with pytest.raises(ValueError, match=r"num_pages: 9999 pages take .* no state slot fits"):
        gpu.pools_that_fit(DEMAND, 9999, None)
    assert gpu.pools_that_fit(DEMAND, 9999, 77) == PoolSize(9999, 77), "taken at their word"


def test_pages_smaller_than_a_product_on_tensor_cores() -> None:
    settings = {"num_pages": 1, "num_state_slots": 1, "page_size": 8}
    with pytest.raises(ValueError, match=r"^page_size: 8 is below the 16 tokens"):
        EngineConfig(checkpoint("per_expert"), **settings, device="cuda")  # type: ignore[arg-type]
    EngineConfig(checkpoint("per_expert"), **settings)  # type: ignore[arg-type]


def test_more_sequences_than_a_decode_step_takes() -> None:
    settings = {"num_pages": 1, "num_state_slots": MAX_DECODE_ROWS + 1, "device": "cuda"}
    with pytest.raises(ValueError, match=r"num_state_slots: 513 exceeds the 512"):
        EngineConfig(checkpoint("per_expert"), **settings)  # type: ignore[arg-type]
    EngineConfig(checkpoint("per_expert"), **settings, decodes=False)  # type: ignore[arg-type]


def test_graphs_of_steps_and_groups_that_cannot_be() -> None:
    settings = {"num_pages": 1, "num_state_slots": 1}
    for wrong in ((4, 2), (2, 2), (0, 1), (1, MAX_DECODE_ROWS + 1)):
        with pytest.raises(ValueError, match=r"^decode_buckets: \("):
            EngineConfig(checkpoint("per_expert"), **settings, decode_buckets=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^group_sizes: \(3,\) are not all of \(2, 4, 8\)"):
        EngineConfig(checkpoint("per_expert"), **settings, group_sizes=(3,))  # type: ignore[arg-type]
    EngineConfig(checkpoint("per_expert"), **settings, decode_buckets=(), group_sizes=(4,))  # type: ignore[arg-type]


def test_fewer_prompt_tokens_leave_more_of_a_small_card(hopper: pytest.MonkeyPatch) -> None:
    """As on a card of 24 GiB: what others hold of the large one is held of the small one."""
    hopper.setattr(torch.cuda, "mem_get_info", lambda: (80 * GIB - HELD, 80 * GIB))
    config = EngineConfig(FULL_SIZE, None, 8, device="cuda", gpu_memory=24.0, max_prompt_tokens=512)
    part = gpu.GpuPart.of(config)
    assert part.memory() == (24 * GIB - HELD, 24 * GIB)
    assert gpu.GpuPart().working_bytes == 8 * GIB
    pools = gpu.pools_that_fit(replace(DEMAND, part=part), None, 8)
    assert pools.num_pages * FULL.page_size >= 8 * 8192
    gpu.require_gpu(int(1.5 * GIB), part)
    with pytest.raises(GpuMemoryHeld, match=r"24\.00 GiB free.*1\.20 GiB to work.*512 prompt"):
        gpu.require_gpu(3 * GIB, part)
    with pytest.raises(ValueError, match=r"to work with up to 8192 prompt tokens a batch"):
        gpu.require_gpu(19 * GIB, replace(part, max_prompt_tokens=8192))


@pytest.mark.parametrize(("limit", "fraction"), [(24, 0.25), (None, None), (90, 0.95)])
def test_torch_is_held_to_what_the_pools_leave(
    limit: int | None, fraction: float | None, hopper: pytest.MonkeyPatch
) -> None:
    held: list[float] = []
    hopper.setattr(torch.cuda, "mem_get_info", lambda: (60 * GIB, 80 * GIB))
    hopper.setattr(torch.cuda, "memory_reserved", lambda: 16 * GIB)
    hopper.setattr(torch.cuda, "set_per_process_memory_fraction", held.append)
    gpu.GpuPart(1, None if limit is None else limit * GIB).hold()
    assert held == ([] if fraction is None else [fraction])


@pytest.mark.parametrize("gib", [6, 20, 100])
def test_windows_take_memory_in_slots_and_for_the_prompts_of_a_pass(
    hopper: pytest.MonkeyPatch, gib: int
) -> None:
    """Gemma 3 12B: 8 of 48 layers in pages, 18 window pages of the others in each slot."""
    layout = CacheLayout(
        "bfloat16", 64, 8, 8, 256, 0, 0, 0, 0, 0, 0, num_window_layers=40, window=1024
    )
    demand = replace(DEMAND, layout=layout, num_ids=262_208, max_seq_len=131_072)
    free = 8 * GIB + demand.probe_bytes + gib * GIB
    hopper.setattr(torch.cuda, "mem_get_info", lambda: (free, 140 * GIB))
    assert (layout.window_page_bytes, layout.ring_pages) == (20 << 20, 18)
    assert demand.num_work_pages == 8192 // 64 + SPARE_PAGES
    pools = gpu.pools_that_fit(demand, None, None)
    slots = pools.num_state_slots
    taken = slots * demand.slot_bytes + pools.num_pages * layout.page_bytes
    taken += demand.num_work_pages * layout.window_page_bytes + demand.sampled_bytes(slots)
    assert gib * GIB - 2 * layout.page_bytes < taken <= gib * GIB
    assert demand.tokens_each == 90 * 64
    assert pools.num_pages * layout.page_bytes >= slots * 18 * layout.window_page_bytes
