"""The order of the tests names files that exist."""

import ast
import fcntl
from pathlib import Path

import pytest

from tests import lanes

ROOT = Path(__file__).resolve().parents[1]
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def test_every_file_that_is_named_exists() -> None:
    named = [*lanes.FIRST, *lanes.PARCELS, *lanes.PARCELS.values()]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_tests_of_a_parcel_have_one_scope_and_others_their_file() -> None:
    shared = {lanes.parcel(f"tests/clients/test_{name}.py::test_a") for name in "ab"}
    assert shared == {lanes.CLIENTS}
    assert lanes.parcel("tests/e2e/test_history.py::test_a[1]") == lanes.BATON
    assert lanes.parcel("tests/e2e/test_end.py::test_a") == "tests/e2e/test_end.py"


@pytest.mark.parametrize(
    "file", sorted((ROOT / "tests/e2e").glob("test_*.py")), ids=lambda f: f.stem
)
def test_a_file_that_uses_a_shared_stack_is_in_its_parcel(file: Path) -> None:
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, FUNCTION)]
    own = {function.name for function in functions}
    asked = {argument.arg for function in functions for argument in function.args.args
             if function.name.startswith("test_") or function.decorator_list}  # fmt: skip
    shared = {lanes.BATON: ("baton", "texts"), lanes.TINY: ("tiny", "cold")}
    for parcel, fixture in ((p, f) for p, fixtures in shared.items() for f in fixtures):
        if fixture in asked - own:
            assert lanes.parcel(str(file.relative_to(ROOT))) == parcel, fixture


def test_every_other_process_begins_with_files_that_start_workers() -> None:
    waiting = ["tests/e2e/test_end.py", lanes.CLIENTS, "tests/kernels/sampling/test_mask.py"]
    assert [lanes.next_parcel(waiting, process) for process in range(4)] == [
        waiting[0], waiting[2], waiting[0], waiting[2],
    ]  # fmt: skip
    assert lanes.next_parcel(waiting[:2], 1) == waiting[0]
    assert lanes.next_parcel(waiting[2:], 0) == waiting[2]


def test_tests_in_docker_come_last_until_there_is_an_engine() -> None:
    docker, others = (
        "tests/docker/test_node.py",
        ["tests/e2e/test_end.py", "tests/worker/test_a.py"],
    )
    chosen = [
        lanes.next_parcel([docker, *some], process, no_engine=no_engine)
        for some in (others, others[:1], [])
        for process, no_engine in ((0, True), (1, True), (1, False))
    ]
    assert chosen == [*others, docker, others[0], others[0], docker, docker, docker, docker]


def test_an_engine_is_being_made_while_its_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(lanes.ENGINE, raising=False)
    assert not lanes.engine_is_being_made()
    monkeypatch.setenv(lanes.ENGINE, str(tmp_path / "engine"))
    with (tmp_path / "engine.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lanes.engine_is_being_made()
    assert not lanes.engine_is_being_made()
