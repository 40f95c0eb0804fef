"""Claims of GPUs by this process and by others, for tests of their locks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worker.gpu_locks.claim import GpuClaim, claim_gpu
from worker.gpu_locks.folder import LockFolder

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
WORKER = """
import sys
from pathlib import Path
from worker.gpu_locks.claim import claim_gpu
from worker.gpu_locks.folder import LockFolder
folder, instance, share, *gpus = sys.argv[1:]
def waits(reason):
    print("waits:", reason, flush=True)
folder = LockFolder(Path(folder))
claim = claim_gpu(folder, gpus, int(share), instance, timeout_s=60.0, on_waiting=waits)
print(claim.gpu, flush=True)
sys.stdin.read()
"""


@contextmanager
def worker(
    folder: LockFolder, instance: str, *gpus: str, share: int = 1
) -> Iterator[subprocess.Popen]:
    """A process that claims one of ``gpus`` and keeps it until it is ended."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder.path), instance, str(share), *gpus],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen) -> str:
    line = process.stdout.readline().strip()
    assert line, process.stderr.read()
    return line


def claim(
    folder: LockFolder, *gpus: str, share: int = 1, instance: str = "decode-9", timeout_s=1e-3
) -> GpuClaim:
    return claim_gpu(folder, gpus, share, instance, timeout_s=timeout_s)


def give_back(claimed: GpuClaim) -> None:
    for fd in claimed.fds:
        os.close(fd)
