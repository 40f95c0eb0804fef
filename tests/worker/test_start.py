"""How a worker comes to its device."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from engine import gpu
from engine.config import EngineConfig
from engine.gpu import Gpu
from prefill.limits import PrefillLimits, RoundLimits
from transport.wire.errors import ChannelRefused
from worker import start
from worker.gpu_locks.claim import GpuClaim, NoFreeGpu, claim_gpu
from worker.gpu_locks.folder import LockFolder

LIMITS = RoundLimits(PrefillLimits(64, 1), 64)
SEEN = [Gpu(0, "GPU-aa"), Gpu(1, "GPU-bb")]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The devices that were made the current one, in turn."""
    chosen: list[int] = []
    monkeypatch.setattr(gpu, "visible_gpus", lambda: SEEN)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


@pytest.fixture(autouse=True)
def claims(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GpuClaim]]:
    """The claims that were made, given back after the test."""
    made: list[GpuClaim] = []

    def noted(*given, **named) -> GpuClaim:
        made.append(claim_gpu(*given, **named))
        return made[-1]

    monkeypatch.setattr(start, "claim_gpu", noted)
    yield made
    for claim in made:
        for fd in claim.fds:
            os.close(fd)


Settings = Callable[..., start.WorkerSettings]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    def make(
        device: str, wanted: str = "", share: int = 1, timeout_s: float = 1e-3, **more: float
    ) -> start.WorkerSettings:
        config = EngineConfig(Path(), 1, 1, device=device, gpu_share=share)
        return start.WorkerSettings(
            "decode", "ipc://somewhere", config, LIMITS, gpu=wanted, claim_timeout_s=timeout_s,
            gpu_lock_dir=tmp_path / "locks", **more,
        )  # fmt: skip

    return make


def test_on_the_cpu_nothing_is_claimed(
    chosen: list[int], claims: list[GpuClaim], settings: Settings
) -> None:
    assert start._claim("decode-1", settings("cpu")) == ""
    assert (claims, chosen) == ([], [])


def test_the_gpu_that_is_claimed_becomes_the_current_one(
    chosen: list[int], settings: Settings
) -> None:
    for instance, uuid in (("d-1", "GPU-aa"), ("d-2", "GPU-bb"), ("d-3", "GPU-aa")):
        assert start._claim(instance, settings("cuda", share=2)) == uuid
    assert chosen == [0, 1, 0]


def test_only_a_gpu_that_was_named_is_taken(chosen: list[int], settings: Settings) -> None:
    assert start._claim("decode-1", settings("cuda", "1")) == "GPU-bb"
    with pytest.raises(NoFreeGpu, match="after 0 s: GPU-bb is held by decode-1, pid "):
        start._claim("decode-2", settings("cuda", "gpu-b"))
    assert chosen == [1]


def test_a_worker_that_waits_says_what_holds_the_gpus(
    chosen: list[int], settings: Settings, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    start._claim("decode-1", settings("cuda", "0"))
    (LockFolder(tmp_path / "locks").path / "GPU-bb.unfit").write_text("taken out")
    with pytest.raises(NoFreeGpu):
        start._claim("decode-2", settings("cuda", timeout_s=0.2))
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said.startswith(
        "no GPU is free; this worker waits for one: GPU-aa is held by decode-1, pid "
        f"{os.getpid()}; GPU-bb is unfit without an end (taken out); reset with nvidia-smi"
    )


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_gpu_is_unfit_for_a_bounded_time(seconds: float, settings: Settings) -> None:
    with pytest.raises(ValueError, match="unfit_gpu_s: "):
        settings("cuda", unfit_gpu_s=seconds)


def test_a_worker_that_the_coordinator_refuses_does_not_load_to_the_end(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Mock(receive=Mock(side_effect=ChannelRefused("another secret")))
    monkeypatch.setattr(start, "WorkerChannel", Mock(return_value=channel))
    loaded = []

    def load(config: EngineConfig, allocate: object, progress: Callable[[int, int], None]) -> None:
        for number in range(1, 4):
            loaded.append(number)
            progress(number, 3)

    monkeypatch.setattr(start.Engine, "load", load)
    with pytest.raises(ChannelRefused):
        start.serve(settings("cpu"))
    assert loaded == [1]
    channel.close.assert_called_once_with()
