"""Reads how much memory this process can still get before the kernel kills a process."""

from pathlib import Path


def available_bytes(
    meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")
) -> int:
    """Bytes available on the machine, or in the process's cgroup (v2) if that has less. Memory used
    to cache files counts as available."""
    (line,) = (x for x in meminfo.read_text().splitlines() if x.startswith("MemAvailable:"))
    available = int(line.split()[1]) << 10
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        stat = dict(x.split() for x in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return available
    if limit == "max":
        return available
    files = int(stat["active_file"]) + int(stat["inactive_file"])
    return min(available, int(limit) - used + files)
