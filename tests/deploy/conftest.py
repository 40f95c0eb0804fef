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
    """Begin with ``up(*args, **environ)``; ends with the test."""
    begun: list[Up] = []

    def begin(*args: str, **environ: str) -> Up:
        folder = short_dir / str(len(begun))
        folder.mkdir()
        begun.append(Up(folder, *args, **environ))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()
