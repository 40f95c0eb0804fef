"""Without a GPU Triton's interpreter runs the kernels. It is chosen when triton is first imported,
which any library may do, so before all tests. And torch and numpy compute with one thread, also in
the processes that tests start: tests run in as many processes as there are cores, and numpy's other
threads spin where they wait. No server here has a certificate of the world's: to load those takes
each HTTP client 20 ms of CPU time, and of a dozen clients the last would begin to read when the
first streams are over.

Garbage collection is off until all tests are imported, and what was imported is never searched:
that halves the time of the imports.
"""

import fcntl
import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy reads it when it is imported

import pytest
import torch

from tests import lanes, told

# Now, and not in a hook: the conftest.py of a folder that is named on the command line is imported
# before any hook is called, and Triton with it.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The first process imports the tests before the others do where nothing is compiled yet: each
    would compile all that is imported."""
    if sys.dont_write_bytecode or any(Path(__file__).parent.glob("__pycache__/test_lanes.*.pyc")):
        return (yield)
    first = os.environ.get("PYTEST_XDIST_WORKER") == "gw0"
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if first else fcntl.LOCK_SH)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lanes.place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> lanes.Parcels:
    return lanes.Parcels(config, log)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that runs tests for another hands on what it has to tell."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["told"] = told.LINES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    told.LINES.extend(getattr(node, "workeroutput", {}).get("told", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in told.LINES:
        terminalreporter.write_line(line)
