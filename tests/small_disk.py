"""A file system of a few KiB or MiB of a test's own, to be filled."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs at ``folder``, which is made; private to this user. Skips the test where none can be
    mounted."""
    folder.mkdir(mode=0o700)
    options = f"size={size},mode=0700,uid={os.getuid()},gid={os.getgid()}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, timeout=10, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs of its own is needed, which takes root: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=10, check=True)


def fill(file: Path, *, leaving_bytes: int) -> None:
    """Take up the space that is left on the file system of ``file``, by that file."""
    with file.open("ab") as filler:
        size = os.fstat(filler.fileno()).st_size
        free = shutil.disk_usage(file).free
        os.posix_fallocate(filler.fileno(), size, free - leaving_bytes)
