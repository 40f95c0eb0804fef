"""How many cores and threads a worker takes of a host that it shares."""

import os
from pathlib import Path

import pytest

from worker.cores import threads_of, usable_cores

AFFINE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, AFFINE),
        ({"cpu.max": "max 100000\n"}, AFFINE),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "999900000 100000\n"}, AFFINE),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, AFFINE),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_the_affinity_and_the_quota_bound_the_cores(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == expected


@pytest.mark.parametrize(
    ("threads", "workers", "cores", "expected"),
    [(0, 1, 8, 8), (0, 3, 8, 2), (0, 8, 2, 1), (5, 8, 2, 5)],
)
def test_the_cores_are_divided_among_the_workers(
    threads: int, workers: int, cores: int, expected: int
) -> None:
    assert threads_of(threads, workers, cores) == expected


def test_a_bad_number_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^threads: "):
        threads_of(-1, 1, 8)
    with pytest.raises(ValueError, match=r"^host_workers: "):
        threads_of(0, 0, 8)
