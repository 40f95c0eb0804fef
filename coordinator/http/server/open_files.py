"""How many files the coordinator may open: one for each connection, and some to spare."""

import resource

SPARE_FILES = 512
"""Besides the connections: Redis, workers, logs, those that are accepted and closed."""
FEWEST = 1024  # connections where files allow them: a burst beyond a small limit is told so


def allow_open_files(setting: str, connections: int) -> int:
    """Raise this process's soft limit for so many connections, never lower it. Returns how many it
    leaves room for: at most twice as many or ``FEWEST``, and never what is spare for others.

    Raises ValueError naming ``setting`` and both numbers when the hard limit forbids it.
    """
    needed = connections + SPARE_FILES
    most = max(2 * connections, FEWEST)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    if soft >= needed:
        return min(soft - SPARE_FILES, most)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{setting}: {connections} needs {needed} open files, and this process may have {hard} "
            "at most; raise the hard limit (ulimit -Hn, LimitNOFILE, ulimits: nofile) or lower it"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return connections
