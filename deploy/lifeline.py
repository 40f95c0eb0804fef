"""Run a command that ends when its parent does: ``lifeline.py KILL 4711 python -m decode``.

With ``--listen=N`` in front of the command, descriptor N, a listening socket, is passed on by
systemd's convention (telemetry/listen_fds.py): this process alone knows the id to name there.

The process asks the kernel for the signal at its parent's death (PR_SET_PDEATHSIG), then
becomes the command: execve keeps both the request and the process id. Done here rather than
between fork and exec, where Python code may hang on a lock that some thread of the parent
held. A parent that died before the request is noticed by its process id.

NOTE: the kernel means the parent's *thread*: spawn from one that lives as long as the process.
NOTE: the request is not inherited by the command's own children.

Run as a file by a bare interpreter (``python -I -S``), so it imports nothing of ours.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
FIRST_FD = 3


def main(signal_name: str, parent: str, *command: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.Signals[f"SIG{signal_name}"]) != 0:
        sys.exit(f"error: prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        sys.exit(f"error: the parent {parent} is gone already")
    if command[0].startswith("--listen="):
        os.dup2(int(command[0].partition("=")[2]), FIRST_FD)
        os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
        command = command[1:]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
