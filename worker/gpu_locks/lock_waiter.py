"""The helper of first_free.py: ``python lock_waiter.py FD ...``.

Waits for all of these inherited files' locks at once, and prints the number of each that it has
locked. Ends with its standard input, that is with the process that started it, which frees every
lock that only this process holds by then.
"""

import fcntl
import os
import signal
import sys
import threading


def _lock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(sys.stdout.fileno(), f"{fd}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this
    for argument in sys.argv[1:]:
        threading.Thread(target=_lock, args=(int(argument),), daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)
