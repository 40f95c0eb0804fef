"""What memory is available, to the machine and to a container."""

from pathlib import Path

import pytest

from transport.copy.free_memory import available_bytes

MEMINFO = "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    500 kB\n"
STAT = "anon 1\nactive_file 3000\ninactive_file 4000\nshmem 5\n"


def host(folder: Path, **group: str) -> int:
    (folder / "meminfo").write_text(MEMINFO)
    for name, text in group.items():
        (folder / f"memory.{name}").write_text(text)
    return available_bytes(folder / "meminfo", folder)


def test_without_a_group_it_is_the_machines(tmp_path: Path) -> None:
    assert host(tmp_path) == 500 << 10


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max", 500 << 10), ("20000", 20_000 - 15_000 + 7_000), ("9000000", 500 << 10)],
)
def test_a_group_with_less_bounds_it(tmp_path: Path, limit: str, expected: int) -> None:
    assert host(tmp_path, max=limit, current="15000\n", stat=STAT) == expected


def test_this_machine_has_some() -> None:
    assert available_bytes() > 1 << 20
