"""In which order files are tested, and which of them by the same process.

pytest-xdist gives each file to the next process that is free. Here files that share a stack of the
session are one parcel: in other processes each would start that stack anew.
"""

import pytest
from xdist.scheduler import LoadFileScheduling

BATON = "tests/e2e/test_bad_input.py"
TINY = "tests/e2e/test_bench_checks.py"
CLIENTS = "tests/clients/"

SHARED = {
    BATON: "colocated security memory history clients interference",
    TINY: "word_problems prompt_logprobs prefix_cache_settings responses random_schemas",
}
"""By the file that comes first, names of files in tests/e2e that use the same fixture of
tests/e2e/conftest.py: ``baton``, ``tiny``. All of tests/clients share ``api``."""

FIRST = (
    TINY,
    BATON,
    "tests/e2e/test_parity.py",
    "tests/engine/",
    "tests/kernels/",
    "tests/docker/test_node.py",
    "tests/e2e/",
    CLIENTS,
    "tests/docker/",
    "tests/simulation/",
    "tests/ray/test_on_ray.py",
    "tests/worker/test_lockstep_processes.py",
    "tests/soak/",
    "tests/bench/",
    "tests/deploy/",
)
"""Long files come first: one of them alone at the end leaves a core without work. What needs Docker
waits until others have run, as .ci/run makes an engine meanwhile."""

PARCELS = {
    f"tests/e2e/test_{name}.py": first for first, names in SHARED.items() for name in names.split()
}


def parcel(nodeid: str) -> str:
    """The file that names the parcel of this test."""
    file = nodeid.split("::", 1)[0]
    return CLIENTS if file.startswith(CLIENTS) else PARCELS.get(file, file)


def place(item: pytest.Item) -> int:
    """By which items are sorted."""
    name = parcel(item.nodeid)
    return next((i for i, begin in enumerate(FIRST) if name.startswith(begin)), len(FIRST))


class Parcels(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return parcel(nodeid)
