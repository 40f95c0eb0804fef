"""The limit of open files of the coordinator: one per connection, and some to spare."""

import resource

SPARE_FILES = 512
"""Files besides the connections: Redis, workers, logs, connections that are just accepted or
closed."""
FEWEST = 1024
"""Connections that are allowed at least, if files allow them: requests beyond a small
BATON_MAX_OPEN then get a 503 instead of waiting."""


def allow_open_files(setting: str, connections: int) -> int:
    """Raise this process's soft limit for ``connections``, never lower it. Returns how many
    connections it has room for: at most twice as many or ``FEWEST``, and never the spare ones.

    Raises ValueError naming ``setting`` and both numbers if the hard limit forbids it.
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
