"""The verdict on a GPU's health, from its readings under full load. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from bench.harness.gpu.formulas import drift, highest
from telemetry.gpu_readings import GpuInfo, Reading, Xid
from telemetry.xids import FAILING, meaning


class Level(IntEnum):
    HEALTHY = 0
    DEGRADED = 1
    FAILING = 2


@dataclass(frozen=True)
class Finding:
    level: Level
    reason: str

    def __str__(self) -> str:
        return f"{self.level.name.lower()}: {self.reason}"


@dataclass(frozen=True)
class Limits:
    """Shares are of the samples, or of the first window's mean. ``near_slowdown_c``: degrees below
    the slowdown temperature that count as too hot. ``window_s``: seconds of the windows that are
    compared at both ends of the run."""

    near_slowdown_c: float = 3.0
    slowed_share: float = 0.01
    slowed_share_failing: float = 0.25
    clock_drop: float = 0.05
    rate_drop: float = 0.05
    rate_drop_failing: float = 0.20
    window_s: int = 60


def judge_gpu(
    info: GpuInfo, readings: Sequence[Reading], xids: Sequence[Xid], limits: Limits
) -> list[Finding]:
    """The findings against this GPU; none if it is healthy."""
    if not readings:
        return [Finding(Level.FAILING, "it gave no reading")]
    return [
        *_of_xids(xids),
        *_of_memory(readings),
        *_of_heat(info, readings, limits),
        *_of_slowdowns(readings, limits),
        *_of_clocks(readings, limits),
    ]


def judge_rate(tokens_per_s: Sequence[float], limits: Limits) -> list[Finding]:
    """A finding if the throughput of the last window fell below that of the first."""
    change = drift(tokens_per_s, limits.window_s)
    if change is None or change > -limits.rate_drop:
        return []
    level = Level.FAILING if change <= -limits.rate_drop_failing else Level.DEGRADED
    window = limits.window_s
    return [Finding(level, f"tokens/s fell by {-change:.0%} from the first {window} s to the last")]


def level(findings: Sequence[Finding]) -> Level:
    return max((finding.level for finding in findings), default=Level.HEALTHY)


def _of_xids(xids: Sequence[Xid]) -> list[Finding]:
    found = []
    for number in sorted({xid.number for xid in xids}):
        times = sum(xid.number == number for xid in xids)
        how_bad = Level.FAILING if number in FAILING else Level.DEGRADED
        found.append(Finding(how_bad, f"Xid {number} × {times}: {meaning(number)}"))
    return found


def _of_memory(readings: Sequence[Reading]) -> list[Finding]:
    found = []
    counts = [r.ecc_uncorrected for r in readings if r.ecc_uncorrected is not None]
    if counts and counts[-1] > counts[0]:
        new = counts[-1] - counts[0]
        found.append(Finding(Level.FAILING, f"{new} uncorrected ECC errors during the run"))
    elif counts and counts[0]:
        found.append(Finding(Level.DEGRADED, f"{counts[0]} uncorrected ECC errors before the run"))
    if any(r.remap_failed for r in readings):
        found.append(Finding(Level.FAILING, "a memory row could not be remapped"))
    if any(r.remap_pending for r in readings):
        found.append(Finding(Level.DEGRADED, "a row remap waits for a reset"))
    return found


def _of_heat(info: GpuInfo, readings: Sequence[Reading], limits: Limits) -> list[Finding]:
    hottest = highest([r.temperature_c for r in readings])
    if hottest is None or info.slowdown_c is None:
        return []
    if hottest < info.slowdown_c - limits.near_slowdown_c:
        return []
    text = f"reached {hottest:.0f} °C; it slows down at {info.slowdown_c:.0f} °C"
    return [Finding(Level.DEGRADED, text)]


def _of_slowdowns(readings: Sequence[Reading], limits: Limits) -> list[Finding]:
    """Findings about held-down clocks. The software power cap is no fault: a GPU at full load
    reaches it."""
    found = []
    reasons = {reason for r in readings for reason in r.slowdowns} - {"sw_power_cap"}
    for reason in sorted(reasons):
        share = sum(reason in r.slowdowns for r in readings) / len(readings)
        if share > limits.slowed_share:
            failing = reason.startswith("hw_") and share > limits.slowed_share_failing
            how_bad = Level.FAILING if failing else Level.DEGRADED
            text = f"clocks held down by {reason} in {share:.0%} of the samples"
            found.append(Finding(how_bad, text))
    return found


def _of_clocks(readings: Sequence[Reading], limits: Limits) -> list[Finding]:
    if any("sw_power_cap" in r.slowdowns for r in readings):
        return []  # there the clock follows the work, not the GPU's health
    clocks = [r.sm_clock_mhz for r in readings if r.sm_clock_mhz is not None]
    span_s = readings[-1].at_s - readings[0].at_s
    window = round(limits.window_s * len(readings) / span_s) if span_s > 0 else 0
    change = drift(clocks, window)
    if change is None or change > -limits.clock_drop:
        return []
    return [Finding(Level.DEGRADED, f"SM clock fell by {-change:.0%} over the run")]
