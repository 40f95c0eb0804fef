"""The Prometheus metrics of workers' GPUs, by the last heartbeat.

A figure that a GPU does not report has no series. NVML and the workers count the counters; this
file only exports them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

LABELS: Final = ("instance", "role", "gpu")


@dataclass(frozen=True)
class _Exported:
    """How a figure is exported: Prometheus has base units, ratios and no percentages."""

    name: str
    documentation: str
    factor: float = 1.0
    counter: bool = False


_FIGURES: Final = {
    "temperature_c": _Exported("baton_gpu_temperature_celsius", "Temperature of the GPU."),
    "slowdown_c": _Exported(
        "baton_gpu_slowdown_celsius", "Temperature at which the hardware slows down."
    ),
    "power_w": _Exported("baton_gpu_power_watts", "Power drawn."),
    "utilisation_pct": _Exported(
        "baton_gpu_utilisation_ratio", "Share of time with a kernel running.", factor=0.01
    ),
    "memory_used_bytes": _Exported("baton_gpu_memory_used_bytes", "Memory in use, by any process."),
    "memory_bytes": _Exported("baton_gpu_memory_bytes", "Memory in total."),
    "sm_clock_mhz": _Exported("baton_gpu_sm_clock_hertz", "Clock of the SMs.", factor=1e6),
    "ecc_uncorrected": _Exported(
        "baton_gpu_ecc_uncorrected_errors",
        "Memory errors that could not be corrected, since the driver was loaded.",
        counter=True,
    ),
    "remap_pending": _Exported(
        "baton_gpu_row_remap_pending", "1: a memory row will be remapped at the next reset."
    ),
    "remap_failed": _Exported(
        "baton_gpu_row_remap_failed", "1: a memory row could not be remapped."
    ),
    "nvlink_errors": _Exported(
        "baton_gpu_nvlink_errors",
        "CRC, replay and recovery errors of all links, since the driver was loaded.",
        counter=True,
    ),
}


@dataclass(frozen=True)
class _Report:
    labels: tuple[str, ...]
    figures: Mapping[str, float]
    xids: Mapping[int, int]


class GpuMetrics(Collector):
    """The newest figures of each worker's GPU, by instance."""

    def __init__(self) -> None:
        self._reports: dict[str, _Report] = {}

    def report(
        self,
        instance: str,
        role: str,
        gpu: str,
        figures: Mapping[str, float],
        xids: Mapping[int, int],
    ) -> None:
        """Set the figures of a worker's GPU. ``gpu`` is a UUID; ``figures`` has only the known
        ones; ``xids``: how often each Xid occurred since the worker started."""
        self._reports[instance] = _Report((instance, role, gpu), figures, xids)

    def forget(self, instance: str) -> None:
        """Remove the worker's series; no-op for one without any."""
        self._reports.pop(instance, None)

    def collect(self) -> Iterator[Metric]:
        reports = list(self._reports.values())
        for figure, exported in _FIGURES.items():
            yield _family(exported, figure, reports)
        xids = CounterMetricFamily(
            "baton_gpu_xid_events",
            "Errors that the driver reported since the worker started.",
            labels=(*LABELS, "xid"),
        )
        for each in reports:
            for number, times in each.xids.items():
                xids.add_metric((*each.labels, str(number)), times)
        yield xids


def _family(exported: _Exported, figure: str, reports: Iterable[_Report]) -> Metric:
    kind = CounterMetricFamily if exported.counter else GaugeMetricFamily
    family = kind(exported.name, exported.documentation, labels=LABELS)
    for each in reports:
        if figure in each.figures:
            family.add_metric(each.labels, exported.factor * each.figures[figure])
    return family
