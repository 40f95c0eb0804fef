"""Takes a running process what it could still get of memory or descriptors."""

import os
import resource
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def in_use(pid: int, limit: int) -> int:
    """Bytes of address space, or open descriptors."""
    if limit == resource.RLIMIT_AS:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * PAGE
    return len(os.listdir(f"/proc/{pid}/fd"))


Limits = tuple[int, int]


def no_more(pid: int, limit: int) -> Limits:
    """Let the process keep what it has of ``limit`` and get no more. Returns its limits before."""
    before = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (in_use(pid, limit), before[1]))
    return before


def as_before(pid: int, limit: int, before: Limits) -> None:
    """Lift what ``no_more`` has set, unless the process has ended."""
    with suppress(ProcessLookupError):
        resource.prlimit(pid, limit, before)
