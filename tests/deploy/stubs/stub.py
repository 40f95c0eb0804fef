"""A service that does as it is told, in place of the coordinator and the workers.

``STUB_<ROLE>`` lists its steps: ``progress`` (40 %), ``flood`` (as fast as a
model with 2,000 tensors), ``ready``, ``refuse`` (print an error, exit
2), ``crash`` (exit 3), ``lack`` (exit 75, to be tried again), ``helper`` (start a process of its
own), ``segment`` (own some shared memory), ``chatty`` (print 4 MB), ``stubborn`` (outlive SIGTERM).
A step that begins with ``first:`` or ``then:`` is for the first process of the service, or for the
later ones. What it starts it reports in ``STUB_JOURNAL`` as "name pid", and the order of ends as
"name stopped".
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from telemetry.notify import Progress, notify

NAME = os.environ["BATON_SERVICE_NAME"]
JOURNAL = Path(os.environ["STUB_JOURNAL"])


def main(role: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    when = "then:" if f"{NAME} " in JOURNAL.read_text() else "first:"
    report(f"{NAME} {os.getpid()}")
    num_ends, segments = 1, []
    for step in os.environ.get(f"STUB_{role.upper()}", "progress ready").split():
        if ":" in step and not step.startswith(when):
            continue
        match step.split(":")[-1]:
            case "progress":
                Progress("loading weights")(0.4)
            case "flood":
                flood()
            case "ready":
                notify(READY=1)
            case "refuse":
                refuse()
            case "crash":
                sys.exit(3)
            case "lack":
                sys.exit(75)
            case "helper":
                report(f"{NAME}-helper {subprocess.Popen(['sleep', '1000']).pid}")
            case "segment":
                from transport.copy.shm import Segment

                segments.append(Segment(f"stub-{os.getpid()}", 4096))
            case "chatty":
                for i in range(40_000):
                    print(i, "x" * 100)
            case "stubborn":
                num_ends = 1000
            case unknown:
                raise ValueError(unknown)
    for _ in range(num_ends):
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    for segment in segments:
        segment.close()
    report(f"{NAME} stopped")


def flood() -> None:
    """Report progress, and print, far more often than the terminal is to be drawn."""
    for number in range(2_000):
        notify(STATUS=f"loading weights {number / 20:.0f}%", X_BATON_PROGRESS=number / 2_000)
        if number % 20 == 0:
            print(f"tensor {number}", flush=True)


def refuse() -> None:
    print(f"error: {NAME} does not like its settings", file=sys.stderr)
    sys.exit(2)


def report(line: str) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(line + "\n")
