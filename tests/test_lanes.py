"""The order of the tests names files that exist."""

from pathlib import Path

from tests import lanes

ROOT = Path(__file__).resolve().parents[1]


def test_every_file_that_is_named_exists() -> None:
    named = [*lanes.FIRST, *lanes.PARCELS, *lanes.PARCELS.values()]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_tests_of_a_parcel_have_one_scope_and_others_their_file() -> None:
    shared = {lanes.parcel(f"tests/clients/test_{name}.py::test_a") for name in "ab"}
    assert shared == {lanes.CLIENTS}
    assert lanes.parcel("tests/e2e/test_history.py::test_a[1]") == lanes.BATON
    assert lanes.parcel("tests/e2e/test_end.py::test_a") == "tests/e2e/test_end.py"


def test_every_other_process_begins_with_files_that_start_workers() -> None:
    waiting = ["tests/e2e/test_end.py", lanes.CLIENTS, "tests/kernels/test_mask.py"]
    assert [lanes.next_parcel(waiting, process) for process in range(4)] == [
        waiting[0], waiting[2], waiting[0], waiting[2],
    ]  # fmt: skip
    assert lanes.next_parcel(waiting[:2], 1) == waiting[0]
    assert lanes.next_parcel(waiting[2:], 0) == waiting[2]
