"""Fixtures of deploy's tests."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.running import Up


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A temporary folder whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def up(short_dir: Path) -> Iterator[Callable[..., Up]]:
    """Start with ``up(*args, **environ)``; ends with the test."""
    started: list[Up] = []

    def start(*args: str, **environ: str) -> Up:
        folder = short_dir / str(len(started))
        folder.mkdir()
        started.append(Up(folder, *args, **environ))
        return started[-1]

    yield start
    for one in started:
        one.close()
