"""A file system of a few KiB or MiB of a test's own, to be filled."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ATTEMPTS = 20
"""To fill a file system: what else is written there meanwhile may make one fail."""


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
        for _ in range(ATTEMPTS):
            size = os.fstat(filler.fileno()).st_size
            missing = shutil.disk_usage(file).free - leaving_bytes
            if missing <= 0:
                return
            try:
                os.posix_fallocate(filler.fileno(), size, missing)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    pytest.fail(f"{file} did not fill its file system in {ATTEMPTS} attempts")
