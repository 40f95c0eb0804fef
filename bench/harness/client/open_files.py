"""Every connection is an open file: ask the system for as many as it gives."""

import resource


def allow_many() -> int:
    """Raise this process's limit as far as its user may; returns the limit. A shell's is often
    1,024, which an open loop against a slow server passes in seconds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
