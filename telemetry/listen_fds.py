"""A listening socket that the supervisor passes on, by systemd's convention (sd_listen_fds(3)).

``LISTEN_PID`` is the process that it is for, ``LISTEN_FDS`` the number of descriptors, from 3 on.
The socket stays open when the process ends: clients that connect before the next process starts
wait in the kernel's queue. ``baton up`` passes one to its coordinator; a systemd socket unit can
pass one to ``baton up`` or to a coordinator.
"""

import os
import socket
from collections.abc import Mapping

FIRST_FD = 3


def inherited_listener(environ: Mapping[str, str], pid: int) -> socket.socket | None:
    """The socket meant for process ``pid``, this one; None if there is none. Raises ValueError for
    anything but one listening TCP socket."""
    if environ.get("LISTEN_PID") != str(pid) or environ.get("LISTEN_FDS", "0") == "0":
        return None
    if environ["LISTEN_FDS"] != "1":
        raise ValueError(f"LISTEN_FDS: {environ['LISTEN_FDS']!r} is not 1, the HTTP socket")
    try:
        listener = socket.socket(fileno=FIRST_FD)
        listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ValueError(f"LISTEN_FDS: descriptor {FIRST_FD} is no socket: {error}") from None
    if not listening or listener.family not in (socket.AF_INET, socket.AF_INET6):
        raise ValueError(f"LISTEN_FDS: descriptor {FIRST_FD} is not a listening TCP socket")
    os.set_inheritable(FIRST_FD, False)
    return listener
