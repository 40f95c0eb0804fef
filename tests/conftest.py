"""Without a GPU Triton's interpreter runs the kernels. It is chosen when triton is first imported,
which any library may do, so before all tests. And torch computes with one thread: tests run in as
many processes as there are cores.

Garbage collection is off until all tests are imported, and what was imported is never searched:
that halves the time of the imports.
"""

import gc
import os
from typing import Any

import pytest
import torch

from tests import told

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    torch.set_num_threads(1)
gc.disable()

FIRST = (
    "tests/e2e/test_parity.py",
    "tests/engine/",
    "tests/kernels/",
    "tests/e2e/test_word_problems.py",
    "tests/e2e/test_bench_checks.py",
    "tests/docker/test_node.py",
    "tests/e2e/",
    "tests/docker/",
    "tests/bench/",
)
"""Long files come first: one of them alone at the end leaves a core without work. What needs Docker
waits until others have run, as .ci/run makes an engine meanwhile."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    matches = (i for i, begin in enumerate(FIRST) if item.nodeid.startswith(begin))
    return next(matches, len(FIRST))


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
