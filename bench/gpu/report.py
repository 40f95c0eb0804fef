"""What the GPU benchmark found, as figures and as a verdict. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.gpu.drawn import drawn
from bench.gpu.formulas import drift, highest, joules, mean, per_second
from bench.gpu.health import Finding, Level, Limits, judge_gpu, judge_rate, level
from bench.gpu.run import Held
from telemetry.gpu_readings import GpuInfo, Reading, Xid

KEPT_FULL_PCT = 90.0


@dataclass(frozen=True)
class Observed:
    """What the sampler has: readings by GPU, over ramp and hold, on the load's clock."""

    infos: tuple[GpuInfo, ...]
    readings: tuple[Sequence[Reading], ...]
    xids: Sequence[Xid]
    notes: tuple[str, ...]


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
        spans = [(s.begin_s, s.end_s, s.answer.num_output) for s in self.held.spans]
        return per_second(spans, self.held.begin_s, self.held.end_s)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of the hold: the one number to compare."""
        return sum(self.timeline) / max(1, len(self.timeline))

    @property
    def energy_j(self) -> float | None:
        """Of all GPUs during the hold; None where one does not tell its power."""
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
        """What speaks against each GPU, and against the run as a whole."""
        found = {
            info.uuid: judge_gpu(
                info,
                readings,
                [x for x in self.seen.xids if x.gpu in (info.index, -1)],
                self.limits,
            )
            for info, readings in zip(self.seen.infos, self.seen.readings, strict=True)
        }
        return found | {"throughput": judge_rate(self.timeline, self.limits)}

    @property
    def verdict(self) -> str:
        if not self.seen.infos:
            return "no GPU"
        return level([one for found in self.findings().values() for one in found]).name.lower()

    def problems(self) -> list[str]:
        """What makes the run fail: a GPU or throughput that is not healthy, failed requests."""
        found = [
            f"{where}: {one.level.name.lower()}: {one.reason}"
            for where, all_of_it in self.findings().items()
            for one in all_of_it
            if one.level > Level.HEALTHY
        ]
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
        timeline = self.timeline
        return {
            **self.headline(),
            "hold_s": self.seconds,
            "total_tokens_per_s": self._total_per_s(),
            "energy_j": self.energy_j,
            "drift": drift(timeline, self.limits.window_s),
            "ramp": [asdict(step) for step in self.held.steps],
            "failures": len(self.held.failures),
            "tokens_each_second": timeline,
            "findings": {
                where: [f"{one.level.name.lower()}: {one.reason}" for one in found]
                for where, found in self.findings().items()
            },
            "xids": [asdict(xid) for xid in self.seen.xids],
            "notes": self.notes(),
            "per_gpu": [self._of(i) for i in range(len(self.seen.infos))],
            "gpu": drawn(self.seen.infos, self.seen.readings),
        }

    def _total_per_s(self) -> float:
        """Prompt tokens counted too, each with the request it belongs to."""
        spans = [
            (s.begin_s, s.end_s, s.answer.num_prompt + s.answer.num_output) for s in self.held.spans
        ]
        seconds = per_second(spans, self.held.begin_s, self.held.end_s)
        return sum(seconds) / max(1, len(seconds))

    def _during_hold(self) -> list[list[Reading]]:
        begin, end = self.held.begin_s, self.held.end_s
        return [[r for r in one if begin <= r.at_s <= end] for one in self.seen.readings]

    def _of(self, gpu: int) -> dict[str, Any]:
        readings = self._during_hold()[gpu]
        return {
            **asdict(self.seen.infos[gpu]),
            "utilisation_pct": mean([r.utilisation_pct for r in readings]),
            "power_w": mean([r.power_w for r in readings]),
            "hottest_c": highest([r.temperature_c for r in readings]),
            "sm_clock_mhz": mean([r.sm_clock_mhz for r in readings]),
            "memory_used_bytes": highest([r.memory_used_bytes for r in readings]),
        }
