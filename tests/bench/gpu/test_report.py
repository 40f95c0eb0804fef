"""The report's figures, for a run whose every number is known."""

from dataclasses import replace

import pytest

from bench.harness.gpu.health import Limits
from bench.harness.gpu.report import GpuReport, Held, Span, Step
from bench.harness.gpu.sampler import Observed
from telemetry.gpu_readings import GpuInfo, Reading, Xid

# Two requests at a time, each 10 s long with 100 tokens: 20 tokens a second from 90 s to 220 s.
SPANS = tuple(Span(90.0 + 10 * i, 100.0 + 10 * i, 50, 100) for i in range(13) for _ in range(2))
HELD = Held((Step(1, 10.0), Step(2, 20.0)), Step(2, 20.0), 100.0, 220.0, SPANS, ())
INFOS = tuple(GpuInfo(i, f"GPU-{i}", "H200", "580", 140 << 30, slowdown_c=90.0) for i in range(2))


def readings(power_w: float) -> list[Reading]:
    """One each second from 90 s on, the ramp included; the ramp draws nothing."""
    return [
        Reading(
            90.0 + t, utilisation_pct=99.0 if t >= 10 else 0.0, temperature_c=60.0,
            power_w=power_w if t >= 10 else 0.0, sm_clock_mhz=1980.0, memory_used_bytes=1 << 30,
        )
        for t in range(131)
    ]  # fmt: skip


OBSERVED = Observed(INFOS, (readings(300.0), readings(500.0)), [], ())


def test_tokens_energy_and_their_ratio() -> None:
    report = GpuReport(HELD, OBSERVED, Limits())
    assert report.tokens_per_s == pytest.approx(20.0)
    assert report.energy_j == pytest.approx(120 * 800.0)
    assert report.tokens_per_j == pytest.approx(20.0 / 800.0)
    found = report.json()
    assert found["total_tokens_per_s"] == pytest.approx(30.0)
    assert found["drift"] == pytest.approx(0.0)
    assert len(found["tokens_each_second"]) == 120
    assert (report.verdict, report.problems(), report.notes()) == ("healthy", [], [])


def test_the_timeline_has_every_gpu_from_the_first_reading_on() -> None:
    timeline = GpuReport(HELD, OBSERVED, Limits()).json()["gpu"]
    assert [moment["at_s"] for moment in timeline] == [float(t) for t in range(131)]
    assert [gpu["index"] for gpu in timeline[-1]["gpus"]] == [0, 1]
    assert [gpu["power_w"] for gpu in timeline[-1]["gpus"]] == [300.0, 500.0]
    assert timeline[-1]["gpus"][0]["memory_used_gib"] == 1.0


def test_the_worst_gpu_is_the_verdict() -> None:
    ill = replace(OBSERVED, xids=[Xid(150.0, 1, 79)])
    report = GpuReport(HELD, ill, Limits())
    assert report.verdict == "failing"
    assert report.problems() == ["GPU-1: failing: Xid 79 × 1: the GPU fell off the bus"]
    unknown = replace(OBSERVED, xids=[Xid(150.0, -1, 63)])  # of which GPU was not told
    assert {p.split(":")[0] for p in GpuReport(HELD, unknown, Limits()).problems()} == {
        "GPU-0", "GPU-1",
    }  # fmt: skip


def test_a_gpu_that_was_not_kept_full_is_noted() -> None:
    idle = [replace(r, utilisation_pct=40.0) for r in readings(100.0)]
    report = GpuReport(HELD, replace(OBSERVED, readings=(idle, readings(500.0))), Limits())
    assert report.notes() == ["GPU-0 was busy 40 % of the time: not kept full"]
    assert report.problems() == []


def test_failed_requests_are_a_problem_whatever_the_gpus_say() -> None:
    held = replace(HELD, failures=("stalled: silent", "http: HTTP 500"))
    problems = GpuReport(held, OBSERVED, Limits()).problems()
    assert problems == ["2 requests failed; the last: http: HTTP 500"]


def test_power_that_is_not_told_gives_no_energy() -> None:
    silent = [replace(r, power_w=None) for r in readings(0.0)]
    report = GpuReport(HELD, replace(OBSERVED, readings=(silent, readings(500.0))), Limits())
    assert (report.energy_j, report.tokens_per_j) == (None, None)


def test_without_a_gpu_there_is_a_number_and_no_verdict() -> None:
    report = GpuReport(HELD, Observed((), (), [], ("no GPU: NVML lists none",)), Limits())
    assert report.verdict == "no GPU"
    assert report.headline()["tokens_per_s"] == pytest.approx(20.0)
    assert (report.json()["gpu"], report.problems()) == ([], [])
