"""Readings of GPUs as a result file holds them and a report draws them."""

from collections.abc import Sequence
from typing import Any

from telemetry.gpu_readings import GpuInfo, Reading


def drawn(infos: Sequence[GpuInfo], readings: Sequence[Sequence[Reading]]) -> list[dict[str, Any]]:
    """``{"at_s", "gpus": [{"index", ...}]}`` for each moment; seconds from the first one.

    ``readings`` are each GPU's, taken at the same moments.
    """
    moments = list(zip(*readings, strict=False))
    first_s = moments[0][0].at_s if moments else 0.0
    return [
        {
            "at_s": moment[0].at_s - first_s,
            "gpus": [
                {"index": info.index, **_figures(reading)}
                for info, reading in zip(infos, moment, strict=True)
            ],
        }
        for moment in moments
    ]


def _figures(reading: Reading) -> dict[str, Any]:
    memory = reading.memory_used_bytes
    return {
        "utilization": reading.utilisation_pct,
        "temperature_c": reading.temperature_c,
        "memory_temperature_c": reading.memory_temperature_c,
        "power_w": reading.power_w,
        "memory_used_gib": None if memory is None else memory / 2**30,
        "sm_clock_mhz": reading.sm_clock_mhz,
        "memory_clock_mhz": reading.memory_clock_mhz,
        "ecc_uncorrected": reading.ecc_uncorrected,
        "slowdowns": sorted(reading.slowdowns),
    }
