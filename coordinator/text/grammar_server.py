"""``python -m coordinator.text.grammar_server FD FOLDER NUM_IDS [EOS_ID …]``: checks forms for a
coordinator (grammar_checks.py).

The compiler of grammars may take any time, overflow its stack, or take all memory, whatever limits
it is given. So each form is checked in a process of its own, forked when the vocabulary is loaded,
with limits that end it; its client then gets no reply. A worker compiles what has passed here in a
thread whose stack is larger, at least twice.

1. A message on socket ``FD`` brings one end of a socket pair, and a child is forked for it.
2. The child writes ``BEGUN``, reads a Form until its end, writes a Verdict and exits.
3. The process ends when the other end of ``FD`` is closed.
"""

import gc
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

import msgspec
from llguidance import LLTokenizer

from coordinator.text.forms import Form, Verdict, verdict
from transport.grammars import grammar_tokenizer

CPU_S = 0.15
BEGUN = b"\n"
"""What a child writes before it begins: white space, before the JSON of its Verdict."""
CHILD_S = 30.0
"""Seconds by the wall clock after which a child is ended, also one that uses no processor."""
_STACK_BYTES = 1024 * 1024
_MEMORY_BYTES = 1024 * 1024 * 1024  # more than the process has when it is forked


def main(control_fd: int, folder: Path, num_ids: int, eos_ids: list[int]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with the coordinator, not before
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps its children
    control = socket.socket(fileno=control_fd)
    tokenizer = grammar_tokenizer(folder, num_ids, eos_ids)
    gc.freeze()  # a collection in a child would copy pages
    while True:
        _, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not fds:
            return
        if os.fork() == 0:
            control.close()
            _child(socket.socket(fileno=fds[0]), tokenizer)
        os.close(fds[0])


def _child(client: socket.socket, tokenizer: LLTokenizer) -> None:
    """Never returns."""
    _limit()
    client.sendall(BEGUN)
    told = b"".join(iter(lambda: client.recv(65_536), b""))

    def check() -> None:
        try:
            found = verdict(msgspec.json.decode(told, type=Form), tokenizer)
        except Exception:
            found = Verdict(bug=traceback.format_exc())
        client.sendall(msgspec.json.encode(found))

    threading.stack_size(_STACK_BYTES)
    checking = threading.Thread(target=check)
    checking.start()
    checking.join()
    os._exit(0)


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, CPU_S)  # its signal ends the process
    signal.setitimer(signal.ITIMER_REAL, CHILD_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), list(map(int, sys.argv[4:])))
