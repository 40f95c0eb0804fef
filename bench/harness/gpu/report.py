"""The result of the GPU benchmark, as figures and as a verdict. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.harness.gpu.formulas import drift, highest, joules, mean, per_second
from bench.harness.gpu.health import Finding, Limits, judge_gpu, judge_rate, level
from bench.harness.gpu.sampler import Observed
from telemetry.gpu_readings import Reading

KEPT_FULL_PCT = 90.0


@dataclass(frozen=True)
class Span:
    """One answered request (``perf_counter`` seconds), with tokens as the server counts them."""

    begin_s: float
    end_s: float
    num_prompt: int
    num_output: int


@dataclass(frozen=True)
class Step:
    """One concurrency that was tried, and the output tokens per second it gave."""

    concurrency: int
    tokens_per_s: float


@dataclass(frozen=True)
class Held:
    """The measurements; the hold is from ``begin_s`` to ``end_s`` (``perf_counter`` seconds).
    ``spans``: all requests with the right answer length. ``failures``: why others failed."""

    steps: tuple[Step, ...]
    best: Step
    begin_s: float
    end_s: float
    spans: Sequence[Span]
    failures: Sequence[str]


@dataclass(frozen=True)
class GpuReport:
    """``verdict`` is "no GPU" on a machine without one, else the worst GPU's health."""

    held: Held
    seen: Observed
    limits: Limits

    @property
    def seconds(self) -> float:
        return self.held.end_s - self.held.begin_s

    @property
    def timeline(self) -> list[float]:
        """Output tokens in each second of the hold."""
        spans = [(s.begin_s, s.end_s, s.num_output) for s in self.held.spans]
        return per_second(spans, self.held.begin_s, self.held.end_s)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of the hold: the one number to compare."""
        return mean(self.timeline) or 0.0

    @property
    def energy_j(self) -> float | None:
        """Energy of all GPUs during the hold; None if one does not report its power."""
        total = 0.0
        for readings in self._during_hold():
            known = [(r.at_s, r.power_w) for r in readings if r.power_w is not None]
            if len(known) < 2:
                return None
            total += joules([at_s for at_s, _ in known], [power for _, power in known])
        return total if self.seen.infos else None

    @property
    def tokens_per_j(self) -> float | None:
        energy = self.energy_j
        return None if not energy else self.tokens_per_s * self.seconds / energy

    def findings(self) -> dict[str, list[Finding]]:
        """The findings against each GPU, and against the run as a whole."""
        found = {}
        for info, readings in zip(self.seen.infos, self.seen.readings, strict=True):
            xids = [xid for xid in self.seen.xids if xid.gpu in (info.index, -1)]
            found[info.uuid] = judge_gpu(info, readings, xids, self.limits)
        return found | {"throughput": judge_rate(self.timeline, self.limits)}

    @property
    def verdict(self) -> str:
        if not self.seen.infos:
            return "no GPU"
        return level([one for found in self.findings().values() for one in found]).name.lower()

    def problems(self) -> list[str]:
        """Why the run fails: an unhealthy GPU, falling throughput, failed requests."""
        found = [f"{where}: {one}" for where, those in self.findings().items() for one in those]
        if self.held.failures:
            count, last = len(self.held.failures), self.held.failures[-1]
            found.append(f"{count} requests failed; the last: {last}")
        return found

    def notes(self) -> list[str]:
        found = list(self.seen.notes)
        for info, readings in zip(self.seen.infos, self._during_hold(), strict=True):
            busy = mean([r.utilisation_pct for r in readings])
            if busy is not None and busy < KEPT_FULL_PCT:
                found.append(f"{info.uuid} was busy {busy:.0f} % of the time: not kept full")
        return found

    def headline(self) -> dict[str, Any]:
        return {
            "tokens_per_s": self.tokens_per_s,
            "gpus": len(self.seen.infos),
            "tokens_per_joule": self.tokens_per_j,
            "concurrency": self.held.best.concurrency,
            "verdict": self.verdict,
        }

    def json(self) -> dict[str, Any]:
        held, timeline = self.held, self.timeline
        spans = [(s.begin_s, s.end_s, s.num_prompt + s.num_output) for s in held.spans]
        findings = {where: [str(one) for one in those] for where, those in self.findings().items()}
        return {
            **self.headline(),
            "hold_s": self.seconds,
            "total_tokens_per_s": mean(per_second(spans, held.begin_s, held.end_s)) or 0.0,
            "energy_j": self.energy_j,
            "drift": drift(timeline, self.limits.window_s),
            "ramp": [asdict(step) for step in held.steps],
            "failures": len(held.failures),
            "tokens_each_second": timeline,
            "findings": findings,
            "xids": [asdict(xid) for xid in self.seen.xids],
            "notes": self.notes(),
            "per_gpu": [
                {
                    **asdict(info),
                    "utilisation_pct": mean([r.utilisation_pct for r in readings]),
                    "power_w": mean([r.power_w for r in readings]),
                    "hottest_c": highest([r.temperature_c for r in readings]),
                    "sm_clock_mhz": mean([r.sm_clock_mhz for r in readings]),
                    "memory_used_bytes": highest([r.memory_used_bytes for r in readings]),
                }
                for info, readings in zip(self.seen.infos, self._during_hold(), strict=True)
            ],
            "gpu": self.seen.json(),
        }

    def _during_hold(self) -> list[list[Reading]]:
        begin, end = self.held.begin_s, self.held.end_s
        return [[r for r in one if begin <= r.at_s <= end] for one in self.seen.readings]
