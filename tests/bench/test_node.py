"""A node's measurement without a stack: its plan, what was done before, and what fails."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bench import node, stack
from bench.commands import CommandFailed, Ended
from bench.setups import Setup

SETUPS = [Setup.parse(name) for name in ("split:2+6", "split:1+7", "colocated:8")]


def test_each_stack_is_started_once() -> None:
    plan = [*node.wanted(SETUPS, node.MODES, node.KINDS)]
    names = [part.name for part in plan]
    assert len(set(names)) == len(names)
    assert names[:2] == ["doctor", "split-2-6-handoff"]
    assert "split-2-6-soak" in names
    assert "split-1-7-soak" not in names
    assert "colocated-8-handoff" not in names
    assert "colocated-8-spread-crowd" in names
    stacks = [part.stack for part in plan if part.stack]
    assert sum(a != b for a, b in pairwise(stacks)) == 8


def test_a_single_decode_worker_spreads_no_steps() -> None:
    setups = [Setup.parse("split:1+1"), Setup.parse("colocated:2")]
    names = {part.served.name for part in node.wanted(setups, ["spread"], ["levels"])}
    assert names == {"colocated-2-spread"}


class Site:
    """Stacks and commands that are only noted. ``broken``: stacks, and parts by their files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.commands: list[Sequence[str]] = []
        self.broken: dict[str, Exception | int] = {}
        monkeypatch.setattr(stack, "started", self.started)
        monkeypatch.setattr(stack, "setting", lambda pid, name: f"{name} of {pid}")
        monkeypatch.setattr(node, "run", self.run)

    def run(self, command: Sequence[str], within_s: float) -> Ended:
        self.commands.append(command)
        out = Path(command[command.index("--out") + 1]) if "--out" in command else None
        name = out.name if out else command[1]
        self.begun.append(name)
        match self.broken.get(name, 0):
            case Exception() as error:
                raise error
            case int() as exit_code:
                if out is not None:
                    out.write_text(f"result {exit_code}")
                return Ended(exit_code, "what it said")

    @contextmanager
    def started(self, *arguments: str, settings: object) -> Iterator[Any]:
        name = "split" if "split" in arguments else "colocated"
        if isinstance(error := self.broken.get(name), Exception):
            raise error
        self.begun.append(name)
        yield SimpleNamespace(
            url="http://there", pids=lambda: {"coordinator": 7},
            stop=lambda: self.begun.append(f"{name} stopped"),
        )  # fmt: skip


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def invoked(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(node.main)
    return CliRunner().invoke(app, [*arguments, "--size", "tiny"])


def test_parts_share_a_stack_and_have_their_results_in_files(site: Site, tmp_path: Path) -> None:
    setups = ["--setups", "split:1+1,colocated:2", "--modes", "plain", "--prefix", "t-"]
    assert invoked(*setups, "--out-dir", str(tmp_path)).exit_code == 0
    assert site.begun == [
        "doctor", "split", "sent.json", "t-split-1-1-handoff.json", "sent.json",
        "t-split-1-1-handoff-long.json", "t-split-1-1-levels.json",
        "t-split-1-1-interference.json", "t-split-1-1-crowd.json", "split stopped",
        "t-split-1-1-soak.json", "colocated", "t-colocated-2-levels.json",
        "t-colocated-2-interference.json", "t-colocated-2-crowd.json", "colocated stopped",
    ]  # fmt: skip
    assert (tmp_path / "t-doctor.txt").read_text() == "what it said"
    assert (tmp_path / "t-split-1-1-levels.json").read_text() == "result 0"
    stages = site.commands[2]
    assert stages[:3] == ["bench.handoff_stages", "--redis-url", "BATON_REDIS_URL of 7"]
    assert stages[3:5] == ["--min-prompt", "64"]
    soak = site.commands[8]
    assert soak[soak.index("--") :].count("split") == 1


def test_a_part_that_failed_is_measured_by_the_next_run(site: Site, tmp_path: Path) -> None:
    arguments = ["--setups", "split:1+1", "--modes", "plain", "--parts", "levels,crowd,soak"]
    arguments += ["--out-dir", str(tmp_path)]
    site.broken = {"split-1-1-levels.json": 1, "split-1-1-soak.json": CommandFailed("too late")}
    failed = invoked(*arguments)
    assert failed.exit_code == 1
    assert "split-1-1-levels: failed: deploy.cli ended with 1: what it said" in failed.output
    assert "split-1-1-soak: failed: too late" in failed.output
    assert [file.name for file in tmp_path.iterdir()] == ["split-1-1-crowd.json"]
    planned = invoked(*arguments, "--plan")
    assert planned.exit_code == 0
    assert planned.output.count("done before") == 1
    site.broken, site.begun = {}, []
    assert invoked(*arguments).exit_code == 0
    assert site.begun == [
        "split", "split-1-1-levels.json", "split stopped", "split-1-1-soak.json"
    ]  # fmt: skip


def test_parts_of_a_stack_that_does_not_start_fail(site: Site, tmp_path: Path) -> None:
    site.broken = {"split": stack.StackFailed("not ready:\nits last line")}
    setups = ["--setups", "split:1+1,colocated:2", "--modes", "plain", "--parts", "levels"]
    found = invoked(*setups, "--out-dir", str(tmp_path))
    assert found.exit_code == 1
    assert "its last line" in found.output
    assert site.begun == ["colocated", "colocated-2-levels.json", "colocated stopped"]


def test_arguments_that_mean_nothing_are_named() -> None:
    for arguments, said in (
        (["--setups", "three"], "three"),
        (["--setups", "split:1+1", "--parts", "leveles"], "leveles"),
        (["--setups", "split:1+1", "--modes", "fast"], "fast"),
    ):
        told = invoked(*arguments)
        assert told.exit_code == 2
        assert said in told.output
