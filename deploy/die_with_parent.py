"""Runs a command that ends when its parent does: ``die_with_parent.py KILL 4711 python -m decode``.

With ``--listen=N`` before the command, the listening socket N is passed on by systemd's convention
(telemetry/listen_fds.py), which needs the process id that only this process knows.

This process asks the kernel for a signal at its parent's death (PR_SET_PDEATHSIG) and then becomes
the command: execve keeps both the request and the process id. The request is not made between fork
and exec: Python code can deadlock there, on a lock that a thread of the parent held at the fork. A
parent that died before the request is noticed by its process id.

NOTE: the kernel sends the signal when the *thread* that forked ends. Fork on the main thread.
NOTE: the command's own children do not inherit the request.

This file runs in a bare interpreter (``python -I -S``), so it imports only the standard library.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
FIRST_FD = 3


def die_with_parent(command: Sequence[str], listen_fd: int | None = None) -> list[str]:
    """The command line that runs ``command`` and kills it when this process ends."""
    listen = [] if listen_fd is None else [f"--listen={listen_fd}"]
    return [sys.executable, "-I", "-S", __file__, "KILL", str(os.getpid()), *listen, *command]


def main(signal_name: str, parent: str, *command: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.Signals[f"SIG{signal_name}"]) != 0:
        sys.exit(f"error: prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        sys.exit(f"error: the parent {parent} is gone already")
    # The mask is inherited, and a parent such as a worker of Ray blocks SIGINT in its threads.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if command[0].startswith("--listen="):
        os.dup2(int(command[0].partition("=")[2]), FIRST_FD)
        os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
        command = command[1:]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
