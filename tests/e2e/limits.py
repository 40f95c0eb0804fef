"""Takes a running process what it could still get of memory or descriptors."""

import os
import resource
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def in_use(pid: int, limit: int) -> int:
    """Bytes of address space, or open descriptors."""
    if limit == resource.RLIMIT_AS:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * PAGE
    return len(os.listdir(f"/proc/{pid}/fd"))


def no_more(pid: int, limit: int) -> None:
    """Let the process keep what it has of ``limit`` and get no more."""
    used = in_use(pid, limit)
    resource.prlimit(pid, limit, (used, used))
