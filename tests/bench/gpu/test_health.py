"""The verdict, for each thing that can be wrong with a GPU."""

from dataclasses import replace

import pytest

from bench.harness.gpu.health import Level, Limits, judge_gpu, judge_rate, level
from telemetry.gpu_readings import GpuInfo, Reading, Xid
from telemetry.xids import FAILING

INFO = GpuInfo(0, "GPU-1", "H200", "580.1", 150 << 30, slowdown_c=90.0, power_limit_w=700.0)
WELL = [
    Reading(
        float(t), utilisation_pct=99, temperature_c=70.0, power_w=600.0, sm_clock_mhz=1980.0,
        ecc_uncorrected=0, remap_pending=False, remap_failed=False,
    )
    for t in range(300)
]  # fmt: skip
LIMITS = Limits()


def verdict(readings: list[Reading], xids: list[Xid] | None = None) -> tuple[Level, str]:
    findings = judge_gpu(INFO, readings, xids or [], LIMITS)
    return level(findings), "; ".join(finding.reason for finding in findings)


def test_a_steady_gpu_is_healthy() -> None:
    assert verdict(WELL) == (Level.HEALTHY, "")


def test_a_gpu_that_offers_no_figures_is_not_called_ill() -> None:
    assert verdict([Reading(float(t)) for t in range(300)]) == (Level.HEALTHY, "")


def test_a_gpu_without_a_reading_is_failing() -> None:
    assert verdict([])[0] is Level.FAILING


@pytest.mark.parametrize("number", sorted(FAILING))
def test_an_xid_of_broken_hardware_is_failing(number: int) -> None:
    found, reason = verdict(WELL, [Xid(3.0, 0, number), Xid(4.0, 0, number)])
    assert found is Level.FAILING
    assert f"Xid {number} × 2" in reason


@pytest.mark.parametrize("number", [13, 63, 94])
def test_another_xid_is_degraded(number: int) -> None:
    assert verdict(WELL, [Xid(3.0, 0, number)])[0] is Level.DEGRADED


def test_new_uncorrected_errors_are_failing_and_old_ones_degraded() -> None:
    new = [*WELL[:150], *(replace(r, ecc_uncorrected=2) for r in WELL[150:])]
    assert verdict(new) == (Level.FAILING, "2 uncorrected ECC errors during the run")
    old = [replace(r, ecc_uncorrected=1) for r in WELL]
    assert verdict(old) == (Level.DEGRADED, "1 uncorrected ECC errors before the run")


def test_row_remaps() -> None:
    pending = [replace(r, remap_pending=True) for r in WELL]
    assert verdict(pending) == (Level.DEGRADED, "a row remap waits for a reset")
    failed = [*WELL[:-1], replace(WELL[-1], remap_failed=True)]
    assert verdict(failed)[0] is Level.FAILING


def test_heat_counts_near_the_slowdown_temperature() -> None:
    assert verdict([replace(r, temperature_c=86.9) for r in WELL])[0] is Level.HEALTHY
    hot = [*WELL[:-1], replace(WELL[-1], temperature_c=87.0)]
    assert verdict(hot) == (Level.DEGRADED, "reached 87 °C; it slows down at 90 °C")


@pytest.mark.parametrize(
    ("reason", "samples", "expected"),
    [
        ("sw_power_cap", 300, Level.HEALTHY),
        ("sw_thermal", 3, Level.HEALTHY),
        ("sw_thermal", 300, Level.DEGRADED),
        ("hw_thermal", 4, Level.DEGRADED),
        ("hw_slowdown", 76, Level.FAILING),
    ],
)
def test_slowdowns_count_by_reason_and_share(reason: str, samples: int, expected: Level) -> None:
    slowed = [replace(r, slowdowns=frozenset({reason})) for r in WELL[:samples]]
    assert verdict([*slowed, *WELL[samples:]])[0] is expected


def test_a_clock_that_falls_is_degraded_unless_power_is_what_caps_it() -> None:
    falls = [*WELL[:200], *(replace(r, sm_clock_mhz=1800.0) for r in WELL[200:])]
    assert verdict(falls) == (Level.DEGRADED, "SM clock fell by 9% over the run")
    capped = [replace(r, slowdowns=frozenset({"sw_power_cap"})) for r in falls]
    assert verdict(capped)[0] is Level.HEALTHY


@pytest.mark.parametrize(
    ("last", "expected"), [(96.0, Level.HEALTHY), (94.0, Level.DEGRADED), (79.0, Level.FAILING)]
)
def test_throughput_must_hold_from_the_first_minute_to_the_last(
    last: float, expected: Level
) -> None:
    findings = judge_rate([100.0] * 60 + [110.0] * 180 + [last] * 60, LIMITS)
    assert level(findings) is expected


def test_a_run_too_short_to_compare_its_ends_says_nothing() -> None:
    assert judge_rate([100.0, 1.0] * 50, LIMITS) == []
