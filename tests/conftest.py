"""Without a GPU Triton's interpreter runs the kernels. It is chosen when triton is first imported,
which any library may do, so before all tests."""

import os
from typing import Any

import pytest
import torch

from tests import told

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


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
