"""Open files: each client's connection is one, and the usual limit of 1,024 is soon reached."""

import resource

SPARE = 512  # besides the connections: Redis, workers, logs, those that are accepted and closed


def allow_open_files(setting: str, connections: int) -> int:
    """Raise this process's soft limit for so many connections, never lower it. Returns how many it
    leaves room for: at most twice as many, and never what is spare for others.

    Raises ValueError naming ``setting`` and both numbers when the hard limit forbids it.
    """
    needed = connections + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2 * connections
    if soft >= needed:
        return min(soft - SPARE, 2 * connections)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{setting}: {connections} needs {needed} open files, and this process may have {hard} "
            "at most; raise the hard limit (ulimit -Hn, LimitNOFILE, ulimits: nofile) or lower it"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return connections
