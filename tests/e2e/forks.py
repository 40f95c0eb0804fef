"""Processes of stacks under test, forked from one that has imported what they import.

To import torch takes a process two seconds of CPU time, and the tests start hundreds of workers.

1. Each process of pytest starts one ``python -m tests.e2e.forks`` (``forker``). It imports all that
   the processes of a stack import, and then forks a ``baton up`` for each message.
2. That ``baton up`` forks its coordinators and workers (``fork_services``). It executes other
   programs, such as Redis.
3. A command that is run to its end, and a service alone, are forks as well (``completed``).

A fork runs its module as ``python -m`` does, with its own command line and environment, also in
/proc. NOTE: /proc shows the memory that held both when the program was executed, and a fork writes
its own there. So the first process gets more of both than it needs.
"""

import asyncio
import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from bench.stack import ROOT, START_S
from deploy import managed_process
from deploy.die_with_parent import PR_SET_PDEATHSIG, die_with_parent

SERVICES = ("coordinator", "prefill", "decode", "colocated")
IMPORTED = ("tests.e2e.quick_up", "deploy.up", *(f"{name}.__main__" for name in SERVICES))
ARGUMENT_BYTES, ENVIRONMENT_BYTES = 8_000, 64_000
PADDING = "BATON_TEST_PADDING"
_MAX_MESSAGE_BYTES = 100_000
_ONE_AT_A_TIME = threading.Lock()


class Fork:
    """A forked ``baton up`` or other ``python -m``, with what bench.stack.Stack uses of
    ``subprocess.Popen``. Errors go to ``errors``, a file, or to its standard output."""

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        cwd: Path = ROOT,
        errors: int | None = None,
    ) -> None:
        """Fork it. The first is to be forked on the main thread."""
        output, theirs = os.pipe()
        self._status, status = os.pipe()
        message = json.dumps({"argv": list(argv), "environ": dict(environ), "cwd": str(cwd)})
        with _ONE_AT_A_TIME:
            control = forker()
            fds = [theirs, status, theirs if errors is None else errors]
            socket.send_fds(control, [message.encode()], fds)
            self.pid = int(control.recv(32))
        os.close(theirs)
        os.close(status)
        self.returncode: int | None = None
        self.stdout = os.fdopen(output, errors="replace")

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the number of the signal that killed it. Raises
        TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("baton up", timeout or 0.0)
            self.returncode = int(os.read(self._status, 32))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.returncode is None and not select.select([self._status], [], [], 0)[0]:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def completed(
    argv: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m …`` to its end. Raises TimeoutExpired, when it has been killed."""
    with tempfile.TemporaryFile("w+") as errors:
        fork = Fork(argv, environ, errors=errors.fileno())
        overdue = threading.Timer(timeout_s, fork.kill)
        overdue.start()
        try:
            output = fork.stdout.read()
            code = fork.wait()
        finally:
            overdue.cancel()
            fork.stdout.close()
        if code == -signal.SIGKILL:
            raise subprocess.TimeoutExpired(list(argv), timeout_s, output)
        errors.seek(0)
        return subprocess.CompletedProcess(list(argv), code, output, errors.read())


@cache
def forker() -> socket.socket:
    """The socket of the process that forks for this one, and ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(theirs.fileno()), "-" * ARGUMENT_BYTES]
    room = {PADDING: "-" * ENVIRONMENT_BYTES, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        die_with_parent(command), env={**os.environ, **room}, cwd=ROOT, pass_fds=[theirs.fileno()]
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(process.kill)  # it is called before
    ours.settimeout(START_S)
    return ours


def main(control: socket.socket) -> NoReturn:
    """Fork for each message, and tell how each fork has ended."""
    gc.disable()
    for name in IMPORTED:
        import_module(name)
        del sys.modules[name]  # a fork runs it as __main__
    assert threading.active_count() == 1, "a fork has none of the threads"
    gc.freeze()
    ends: dict[int, tuple[int, int]] = {}  # by pidfd: the process, and where its status is told
    while True:
        for fd in select.select([control, *ends], [], [])[0]:
            if fd is control:
                message, fds, *_ = socket.recv_fds(control, _MAX_MESSAGE_BYTES, 3)
                output, status, errors = fds
                wanted = json.loads(message)
                parent = os.getpid()
                if (pid := os.fork()) == 0:
                    os.setsid()
                    os.chdir(wanted["cwd"])
                    run(wanted["argv"], wanted["environ"], output, errors, parent)
                ends[os.pidfd_open(pid)] = pid, status
                os.close(output)
                os.close(errors)
                control.send(str(pid).encode())
            else:
                pid, status = ends.pop(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(status, str(code).encode())
                os.close(status)
                os.close(fd)


def fork_services() -> None:
    """Let this process, a forked supervisor, fork its Python services."""
    plain, place = subprocess.Popen, len(die_with_parent([]))

    def popen(command: list[str], **how: Any) -> Any:
        listen_fds = how["pass_fds"]
        argv = command[place + len(listen_fds) :]
        if argv[:2] != [sys.executable, "-m"]:
            return plain(command, **how)
        output, theirs = os.pipe()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            run(argv, how["env"], theirs, theirs, parent, *listen_fds)
        os.setpgid(pid, pid)
        os.close(theirs)
        return SimpleNamespace(
            pid=pid,
            stdout=os.fdopen(output, "rb", buffering=0),
            wait=lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
        )

    managed_process.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=popen, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT
    )


def run(
    argv: list[str],
    environ: Mapping[str, str],
    output: int,
    errors: int,
    parent: int,
    listen_fd: int | None = None,
) -> NoReturn:
    """Run ``python -m MODULE ARGUMENTS`` in this process, which ``parent`` has just forked, with
    nothing of the parent but what it has imported. The process dies with its parent."""
    status: Any = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent != os.getppid():
            os._exit(1)  # it was gone already
        _forget_signals()
        _keep_files(output, errors, listen_fd)
        own = dict(environ)
        if listen_fd is not None:
            own |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
        _show(argv, own)
        gc.enable()
        sys.argv = argv[2:]
        _forget(argv[2])
        runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as error:
        status = error.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def _forget(name: str) -> None:
    """Run this module as if nobody had imported it."""
    if name in sys.modules and not hasattr(sys.modules[name], "__path__"):
        del sys.modules[name]
    sys.modules.pop(f"{name}.__main__", None)


def _forget_signals() -> None:
    """Handle signals, and run an event loop, as a new process does."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    asyncio._set_running_loop(None)


def _keep_files(output: int, errors: int, listen_fd: int | None) -> None:
    """Read from nowhere, print to ``output`` and ``errors``, and close all other files but
    ``listen_fd``, which becomes the first behind these three."""
    kept = [os.open(os.devnull, os.O_RDONLY), output, errors]
    kept += [] if listen_fd is None else [listen_fd]
    copies = [os.dup(fd) for fd in kept]
    for place, fd in enumerate(copies):  # each copy is behind its place
        os.dup2(fd, place)
    os.closerange(len(copies), os.sysconf("SC_OPEN_MAX"))


def _show(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Take ``environ`` for this process's environment, and show it and ``argv`` in /proc."""
    os.environ.clear()
    os.environ |= environ
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    shown = (argv, [f"{name}={value}" for name, value in environ.items()])
    for first, texts in zip((45, 47), shown, strict=True):  # proc(5): arg_start and env_start
        begin, end = (int(field) for field in fields[first : first + 2])
        written = b"".join(text.encode() + b"\0" for text in texts)
        assert len(written) <= end - begin, "no room"
        ctypes.memmove(begin, written.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
