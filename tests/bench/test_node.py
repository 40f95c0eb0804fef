"""A node's measurement without a stack: its plan, what was done before, and what fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bench import stack
from bench.commands import CommandFailed
from bench.node import __main__ as command
from bench.node import measurements
from bench.node.plan import KINDS, MODES, Part, Served, wanted
from bench.node.settings import Settings
from bench.node.sizes import TINY
from bench.setups import Setup

SETUPS = [Setup.parse(name) for name in ("split:2+6", "split:1+7", "colocated:8")]


def test_the_most_important_parts_come_first_and_stacks_are_started_once() -> None:
    plan = wanted(SETUPS, MODES, KINDS)
    names = [part.name for part in plan]
    assert len(set(names)) == len(names)
    assert names[:2] == ["doctor", "split-2-6-levels"]
    assert "split-2-6-soak" in names
    assert "split-1-7-soak" not in names
    assert "colocated-8-handoff" not in names
    assert "colocated-8-spread-crowd" in names
    stacks = [part.stack for part in plan if part.stack]
    assert sum(a != b for a, b in pairwise(stacks)) == 8


def test_a_single_decode_worker_spreads_no_steps() -> None:
    setups = [Setup.parse("split:1+1"), Setup.parse("colocated:2")]
    assert {part.served.name for part in wanted(setups, ["spread"], KINDS)} == {
        "colocated-2-spread"
    }


class Site:
    """Stacks and measurements that are only noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.broken: set[str] = set()
        self.settings = Settings(tmp_path, "cpu", "auto", TINY, tmp_path, "t-")
        monkeypatch.setattr(stack, "started", self.started)
        for kinds in (measurements.WITH_STACK, measurements.WITHOUT_STACK):
            for kind in kinds:
                monkeypatch.setitem(kinds, kind, self.measure)  # type: ignore[arg-type]

    def measure(self, settings: Settings, part: Part, running: object = None) -> list[str]:
        self.begun.append(part.name)
        if part.name in self.broken:
            raise CommandFailed("it broke")
        return settings.write(part, {}, {}, [])

    @contextmanager
    def started(self, *arguments: str, settings: object) -> Iterator[Any]:
        name = "split-1-1" if "split" in arguments else "colocated-2"
        if name in self.broken:
            raise stack.StackFailed("not ready:\nits last line")
        self.begun.append(name)
        yield SimpleNamespace(stop=lambda: self.stopped.append(name))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    return Site(monkeypatch, tmp_path)


def part(setup: str, kind: Any) -> Part:
    return Part(kind, Served(Setup.parse(setup)))


FOUR = [
    part("split:1+1", "doctor"), part("split:1+1", "levels"), part("split:1+1", "handoff"),
    part("colocated:2", "handoff"),
]  # fmt: skip


def test_parts_share_a_stack_and_the_rest_goes_on_when_one_fails(site: Site) -> None:
    site.broken = {"split-1-1-levels"}
    assert not command.run(site.settings, FOUR)
    assert site.begun == [
        "doctor", "split-1-1", "split-1-1-levels", "split-1-1-handoff", "colocated-2",
        "colocated-2-handoff",
    ]  # fmt: skip
    assert site.stopped == ["split-1-1", "colocated-2"]
    site.broken = set()
    assert command.run(site.settings, FOUR)


def test_parts_of_a_stack_that_does_not_start_fail(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.broken = {"split-1-1"}
    assert not command.run(site.settings, FOUR)
    assert site.begun == ["doctor", "colocated-2", "colocated-2-handoff"]
    assert capsys.readouterr().err.count("its last line") == 2


def test_a_spread_stack_that_spreads_no_step_is_a_problem() -> None:
    def served(**counters: float | None) -> Any:
        return SimpleNamespace(counters=lambda names: {name: counters[name] for name in names})

    document: dict[str, Any] = {"results": {}, "problems": [], "ok": True}
    measurements._count(document, served(spread_steps=5.0), ["spread_steps"])
    assert (document["ok"], document["results"]["counters"]) == (True, {"spread_steps": 5.0})
    idle = served(spread_steps=0.0, spread_aborts=None)
    measurements._count(document, idle, ["spread_steps", "spread_aborts"])
    assert document["problems"] == ["spread_aborts is not told", "no step was spread"]
    assert not document["ok"]


def invoked(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command.main)
    return CliRunner().invoke(app, ["--setups", "split:1+1", "--size", "tiny", *arguments])


def test_arguments_that_mean_nothing_are_named() -> None:
    for arguments, said in (
        (["--setups", "three"], "three"),
        (["--parts", "leveles"], "leveles"),
        (["--modes", "fast"], "fast"),
        (["--size", "huge"], "huge"),
        (["--device", "tpu"], "tpu"),
    ):
        told = invoked(*arguments)
        assert told.exit_code == 2
        assert said in told.output


def test_a_part_that_went_well_is_not_measured_again(site: Site, tmp_path: Path) -> None:
    done = FOUR[2]
    site.settings.write(done, {}, {}, [])
    arguments = ["--modes", "plain", "--prefix", "t-", "--out-dir", str(tmp_path)]
    planned = invoked(*arguments, "--plan")
    assert planned.exit_code == 0
    assert planned.output.count("done before") == 1
    assert site.begun == []
    assert invoked(*arguments, "--parts", "levels,handoff").exit_code == 0
    assert site.begun == ["split-1-1", "split-1-1-levels"]
    site.settings.write(done, {}, {}, ["too slow"])
    assert not command.is_done(done, site.settings.file(done))


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    for name in ("split-1-1-handoff.json", "split-1-1-levels.json"):
        file = tmp_path / name
        file.write_text('{"handoffs": 462}')
        told = invoked("--out-dir", str(tmp_path))
        assert told.exit_code == 2
        assert "not a result of baton bench" in told.output
        assert file.read_text() == '{"handoffs": 462}'
        file.unlink()
