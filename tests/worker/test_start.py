"""How a worker comes to its device."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from colocated.limits import ColocatedLimits
from engine import gpu
from engine.config import EngineConfig
from engine.gpu import Gpu
from prefill.scheduler import PrefillLimits
from transport.wire.claim import ClaimDenied
from transport.wire.errors import DeadlineExceeded
from transport.wire.messages import Alive, Claim, Denied, Granted
from worker import start

LIMITS = ColocatedLimits(PrefillLimits(64, 1), 64)
SEEN = [Gpu(0, "GPU-aa"), Gpu(1, "GPU-bb")]


class Channel:
    """Answers each claim with the next of ``answers``."""

    endpoint = "ipc://somewhere"

    def __init__(self, *answers) -> None:
        self.answers, self.claims = list(answers), []

    def send(self, claim: Claim) -> None:
        self.claims.append(claim)

    def receive(self, timeout_s: float) -> list:
        return [self.answers.pop(0)] if self.answers else []


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The devices that were made the current one, in turn; a clock that never waits."""
    chosen: list[int] = []
    now = iter(range(10_000))
    monkeypatch.setattr(gpu, "visible_gpus", lambda: SEEN)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    return chosen


def settings(
    device: str, wanted: str = "", share: int = 1, timeout_s: float = 60.0
) -> start.WorkerSettings:
    config = EngineConfig(Path(), 1, 1, device=device, gpu_share=share)
    return start.WorkerSettings(
        "decode", "ipc://somewhere", config, LIMITS, gpu=wanted, claim_timeout_s=timeout_s
    )


def test_on_the_cpu_nothing_is_claimed(chosen: list[int]) -> None:
    channel = Channel()
    assert start._claim(channel, "decode-1", settings("cpu")) == ""
    assert (channel.claims, chosen) == ([], [])


def test_the_gpu_that_is_granted_becomes_the_current_one(chosen: list[int]) -> None:
    channel = Channel(Alive("c1"), Denied("GPU-aa is held by x"), Granted("GPU-bb"))
    assert start._claim(channel, "decode-1", settings("cuda", share=2)) == "GPU-bb"
    assert set(channel.claims) == {Claim("decode-1", ("GPU-aa", "GPU-bb"), 2)}
    assert chosen == [1]


def test_a_gpu_that_was_named_is_the_only_one_asked_for(chosen: list[int]) -> None:
    channel = Channel(Granted("GPU-aa"))
    start._claim(channel, "decode-1", settings("cuda", "0"))
    assert channel.claims == [Claim("decode-1", ("GPU-aa",), 1)]


def test_a_gpu_that_stays_taken_ends_the_worker_with_who_has_it(chosen: list[int]) -> None:
    channel = Channel(*[Denied("GPU-aa is held by decode-9")] * 100)
    with pytest.raises(ClaimDenied, match="after 60 s: GPU-aa is held by decode-9"):
        start._claim(channel, "decode-1", settings("cuda", "GPU-aa"))
    assert chosen == []


def test_a_worker_beyond_the_number_of_gpus_waits_and_says_so_once(
    chosen: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    channel = Channel(*[Denied("GPU-aa is held by decode-9")] * 500, Granted("GPU-bb"))
    assert start._claim(channel, "decode-1", settings("cuda", timeout_s=0)) == "GPU-bb"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["no GPU is free; this worker waits for one: GPU-aa is held by decode-9"]


def test_it_does_not_wait_for_a_coordinator_that_no_longer_answers(chosen: list[int]) -> None:
    channel = Channel(Denied("GPU-aa is held by decode-9"))
    with pytest.raises(DeadlineExceeded, match="no answer"):
        start._claim(channel, "decode-1", settings("cuda", timeout_s=0))
