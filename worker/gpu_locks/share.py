"""How many places each GPU of the node has: the same number for all its workers."""

import fcntl
import os

from worker.gpu_locks.first_free import try_lock
from worker.gpu_locks.folder import LockFolder

_FILE = "gpu_share"
_MAX_DIGITS = 20


def agree_on_share(folder: LockFolder, share: int) -> int:
    """Agree with the node's other workers on ``share``. Returns a descriptor with a shared lock on
    the file that holds the number: while it is open, no worker changes the number. Raises
    ValueError with both numbers if the other workers have another one."""
    fd = folder.open(_FILE)
    try:
        with folder.exclusive():
            if try_lock(fd):  # no other worker is there
                folder.write(fd, b"%d\n" % share)
            # The exclusive lock on the folder keeps away all who would lock this file otherwise.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            others = os.pread(fd, _MAX_DIGITS, 0).decode(errors="replace").strip()
        if others != str(share):
            raise ValueError(
                f"gpu_share: {share} here, but {others or 'unknown'} of the other workers of this "
                f"node, which {folder.path} says; set the same for all (BATON_GPU_SHARE), or end "
                "the others first"
            )
    except BaseException:
        os.close(fd)
        raise
    return fd
