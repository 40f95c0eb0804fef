"""In which order files are tested, and which of them by the same process.

pytest-xdist gives each file to the next process that is free. Here files that share a stack are one
parcel: in other processes each would start that stack anew. And files that start workers are for
every other process, so that they run beside files that start none. What needs a Docker engine
waits until it is made, but in no process, as long as there are other files.
"""

import fcntl
import os
from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

BATON = "tests/e2e/test_bad_input.py"
TINY = "tests/e2e/test_bench_checks.py"
CLIENTS = "tests/clients/"
DOCKER = "tests/docker/"
ENGINE = "BATON_TEST_ENGINE"
"""The folder where .ci/run makes an engine while other tests run; it locks FOLDER.lock as long."""

SHARED = {
    BATON: "colocated security memory history clients interference pools pools_follow",
    TINY: "word_problems prompt_logprobs prefix_cache_settings responses random_schemas thoughts "
    "prefix_cache host_tier",
}
"""By the file that comes first, names of files in tests/e2e that use the same fixture of
tests/e2e/conftest.py: ``baton`` or ``texts``, ``tiny`` or ``cold``. All of tests/clients share
``api``."""

STACKS = (
    "tests/e2e/",
    BATON,
    TINY,
    CLIENTS,
    "tests/worker/test_lockstep_processes.py",
    "tests/soak/",
    "tests/bench/test_node_stack.py",
    "tests/ray/test_on_ray.py",
)
"""Files that start workers. Two of these at a time want more cores than there are, while two of the
others, which compute in one process or wait, leave a core without work. Stacks that files share end
with the folder, so these files are its last."""

OTHERS = (
    "tests/engine/",
    "tests/kernels/",
    "tests/simulation/",
    "tests/bench/",
    f"{DOCKER}test_node.py",
    DOCKER,
    "tests/worker/",
    "tests/deploy/",
    "tests/coordinator/",
    "tests/decode/",
)

FIRST = STACKS + OTHERS
"""Long files come first: one of them alone at the end leaves a core without work."""

PARCELS = {
    f"tests/e2e/test_{name}.py": first for first, names in SHARED.items() for name in names.split()
}


def parcel(nodeid: str) -> str:
    """The file that names the parcel of this test."""
    file = nodeid.split("::", 1)[0]
    return CLIENTS if file.startswith(CLIENTS) else PARCELS.get(file, file)


def place(item: pytest.Item) -> int:
    """By which items are sorted: a file that is named has its own place, not that of its folder."""
    name = parcel(item.nodeid)
    found = [begin for begin in FIRST if name.startswith(begin)]
    return FIRST.index(max(found, key=len)) if found else len(FIRST)


def next_parcel(waiting: Iterable[str], process: int, *, no_engine: bool = False) -> str:
    """The first parcel for this process: one that starts workers for processes 0, 2, …, and another
    one for 1, 3, …; of the wrong kind where there is none of the right one. With ``no_engine`` yet,
    parcels that need Docker come last."""
    every = list(waiting)
    names = [name for name in every if not (no_engine and name.startswith(DOCKER))] or every
    right = (name for name in names if name.startswith(STACKS) == (process % 2 == 0))
    return next(right, names[0])


def engine_is_being_made() -> bool:
    """True while .ci/run makes a Docker engine."""
    if not (folder := os.environ.get(ENGINE)):
        return False
    with open(f"{folder}.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Parcels(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return parcel(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        process = int(node.gateway.id.removeprefix("gw"))
        name = next_parcel(self.workqueue, process, no_engine=engine_is_being_made())
        self.workqueue.move_to_end(name, last=False)  # the next one is taken from the front
        super()._assign_work_unit(node)
