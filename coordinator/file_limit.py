"""Open files: each client's connection is one, and the usual limit of 1,024 is soon reached."""

import resource

SPARE = 512  # besides the connections: Redis, workers, logs, those that wait to be refused


def allow_open_files(setting: str, connections: int) -> None:
    """Raise this process's soft limit for so many connections, never lower it.

    Raises ValueError naming ``setting`` and both numbers when the hard limit forbids it.
    """
    needed = connections + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{setting}: {connections} needs {needed} open files, and this process may have {hard} "
            "at most; raise the hard limit (ulimit -Hn, LimitNOFILE, ulimits: nofile) or lower it"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
