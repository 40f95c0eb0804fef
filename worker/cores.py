"""Counts the cores that this process may use, by its affinity and its control group's quota."""

import math
import os
from pathlib import Path


def usable_cores(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Number of usable cores, at least 1. A container sees its own control group at ``group``."""
    cores = float(len(os.sched_getaffinity(0)))
    return max(1, math.floor(min(cores, _quota(group))))


def threads_of(threads: int, host_workers: int, cores: int) -> int:
    """Number of torch threads: ``threads``, or, if that is 0, this worker's share of the cores.
    Raises ValueError naming the setting.

    >>> threads_of(0, 3, 8), threads_of(0, 8, 2), threads_of(5, 8, 2)
    (2, 1, 5)
    """
    if threads < 0:
        raise ValueError(f"threads: {threads} is negative")
    if host_workers < 1:
        raise ValueError(f"host_workers: {host_workers} is not at least 1")
    return threads or max(1, cores // host_workers)


def _quota(group: Path) -> float:
    """Cores by cgroup v2's cpu.max or v1's cfs quota; infinite without one."""
    try:
        limit, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (group / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    if limit in ("max", "-1"):
        return math.inf
    return int(limit) / int(period)
