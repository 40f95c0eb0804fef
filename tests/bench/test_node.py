"""A node's measurement without a stack: the plan, what is left out, what fails, and the summary."""

import json
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench.commands import CommandFailed
from bench.node import __main__ as command
from bench.node import estimates, measurements, run
from bench.node.earlier import Earlier
from bench.node.plan import KINDS, MODES, Part, Served, Starts, chosen, fits, total_s, wanted
from bench.node.run import Conductor, pack
from bench.node.settings import Settings
from bench.node.sizes import FULL, TINY
from bench.node.summary import lines, node_of, tables
from bench.predict.tables import Table
from bench.setups import Setup
from bench.stack import StackFailed

SETUPS = [Setup.parse(name) for name in ("split:2+6", "split:1+7", "colocated:8")]
STARTS = Starts(100.0, 50.0, 0.0)


def full_plan() -> list[Part]:
    table = Table.read()
    return [
        estimates.part(kind, served, FULL, "cuda", node_of(table, served))
        for kind, served in wanted(SETUPS, MODES, KINDS)
    ]


def test_eight_gpus_fit_into_half_an_hour_and_stacks_are_started_once() -> None:
    plan = full_plan()
    names = [part.name for part in plan]
    assert len(set(names)) == len(names)
    assert names[0] == "doctor"
    assert "split-2-6-soak" in names
    assert "split-1-7-soak" not in names
    assert "colocated-8-handoff" not in names
    assert "colocated-8-spread-crowd" in names
    stacks = [part.stack for part in plan if part.stack]
    assert sum(a != b for a, b in pairwise(stacks)) == 8
    assert total_s(plan, estimates.GPU_STARTS) < 1800


def test_a_single_decode_worker_spreads_no_steps() -> None:
    setups = [Setup.parse("split:1+1"), Setup.parse("colocated:2")]
    names = {served.name for _, served in wanted(setups, ["spread"], KINDS)}
    assert names == {"colocated-2-spread"}


def test_what_matters_least_is_left_out() -> None:
    plan = full_plan()
    taken = chosen(plan, 1200.0, estimates.GPU_STARTS)
    assert total_s(taken, estimates.GPU_STARTS) <= 1200.0
    assert taken == [part for part in plan if part in taken], "in the order of the plan"
    left = {part.served.mode for part in plan if part not in taken}
    assert "plain" not in left
    assert all(part.served.mode == "plain" for part in plan if part.kind == "doctor")
    assert chosen(plan, 0.0, STARTS) == []
    assert chosen(plan, 1e6, STARTS) == plan


def test_a_part_needs_the_time_of_its_stacks_start() -> None:
    served = Served(SETUPS[0])
    levels = Part("levels", served, 30.0)
    assert fits(levels, [], 30.0, served, 1, STARTS)
    assert not fits(levels, [], 79.0, None, 1, STARTS)
    assert fits(levels, [], 80.0, None, 1, STARTS)
    assert not fits(levels, [], 129.0, None, 0, STARTS)
    assert fits(Part("doctor", served, 30.0), [], 30.0, None, 0, STARTS)
    short = Part("crowd", served, 5.0)
    assert not fits(short, [levels], 79.0, None, 1, STARTS), "the stack's levels have no time"
    assert fits(short, [levels], 5.0, served, 1, STARTS)
    assert fits(short, [replace(levels, served=Served(SETUPS[1]))], 55.0, None, 1, STARTS)
    stopped = replace(STARTS, stop_s=5.0)
    assert not fits(levels, [], 34.0, served, 1, stopped), "the stack is stopped within the call"
    assert fits(levels, [], 35.0, served, 1, stopped)
    assert not fits(levels, [], 89.0, Served(SETUPS[1]), 1, stopped), "and the other one before it"
    assert fits(levels, [], 90.0, Served(SETUPS[1]), 1, stopped)
    assert levels.deadline_s == 120.0
    assert replace(levels, limit_s=40.0).deadline_s == 40.0


def settings(tmp_path: Path, table: Table | None = None) -> Settings:
    return Settings(tmp_path, "cpu", "auto", TINY, tmp_path, "t-", table)


class Site:
    """Stacks and measurements that take simulated time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.now = 0.0
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.stop_within_s: list[float] = []
        self.broken: set[str] = set()
        self.starts, self.cold = STARTS, False
        self.settings = settings(tmp_path)
        for kinds in (run.WITH_STACK, run.WITHOUT):
            for kind in kinds:
                monkeypatch.setitem(kinds, kind, self.measure)  # type: ignore[arg-type]

    def measure(self, settings: Settings, part: Part, stack: object = None) -> list[str]:
        self.begun.append(part.name)
        self.now += part.seconds
        if part.name in self.broken:
            raise CommandFailed("it broke")
        settings.write(part, {}, {}, [])
        return []

    @contextmanager
    def start(self, settings: Settings, served: Served, start_s: float) -> Iterator[Any]:
        self.now += self.starts.first_s if self.cold else self.starts.later_s
        self.cold = False
        if served.name in self.broken:
            raise StackFailed(f"not ready within {start_s:g} s:\nits last line")
        self.begun.append(served.name)
        yield SimpleNamespace(process=SimpleNamespace(poll=lambda: None), stop=self.stop)
        self.stopped.append(served.name)

    def stop(self, deadline_s: float) -> None:
        self.now += self.starts.stop_s
        self.stop_within_s.append(deadline_s)

    def conductor(self, call_s: float) -> Conductor:
        self.cold = True
        return Conductor(
            self.settings, self.starts, call_s, start=self.start, clock=lambda: self.now
        )

    def run(self, parts: list[Part], call_s: float = 1e6, taken: list[Part] | None = None) -> Any:
        return self.conductor(call_s).run(parts, parts if taken is None else taken)

    def call(self, plan: list[Part], call_s: float, budget_s: float) -> list[str]:
        """One call of the command; the states of its parts."""
        asked = replace(self.settings, budget_s=budget_s)
        conductor, earlier = self.conductor(call_s), Earlier.read(asked.summary_file)
        to_do = [part for part in plan if not conductor.is_done(part)]
        outcomes = conductor.run(plan, earlier.choose(to_do, budget_s, self.starts))
        command._told(asked, earlier, outcomes, conductor)
        return [outcome.state for outcome in outcomes]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    return Site(monkeypatch, tmp_path)


def parts(*names: str) -> list[Part]:
    found = []
    for name in names:
        setup, _, kind = name.partition("/")
        found.append(Part(kind, Served(Setup.parse(setup)), 10.0))  # type: ignore[arg-type]
    return found


FOUR = parts("split:1+1/doctor", "split:1+1/levels", "split:1+1/handoff", "colocated:2/levels")


def test_parts_of_a_stack_share_its_start(site: Site) -> None:
    outcomes = site.run(FOUR)
    assert [each.state for each in outcomes] == ["done"] * 4
    assert site.begun == [
        "doctor", "split-1-1", "split-1-1-levels", "split-1-1-handoff", "colocated-2",
        "colocated-2-levels",
    ]  # fmt: skip
    assert site.stopped == ["split-1-1", "colocated-2"]
    assert outcomes[1].seconds == 10.0, "without its stack's start"


def test_a_part_that_fails_is_told_and_measured_in_the_next_call(site: Site) -> None:
    site.broken = {"split-1-1-levels"}
    outcomes = site.run(FOUR)
    assert [each.state for each in outcomes] == ["done", "failed", "done", "done"]
    assert list(outcomes[1].problems) == ["it broke"]
    site.broken, site.begun = set(), []
    outcomes = site.run(FOUR)
    assert [each.state for each in outcomes] == ["done before", "done", *["done before"] * 2]
    assert site.begun == ["split-1-1", "split-1-1-levels"]


def test_a_stack_that_does_not_start_is_tried_once_and_the_rest_goes_on(site: Site) -> None:
    site.broken = {"split-1-1"}
    outcomes = site.run(FOUR)
    assert [each.state for each in outcomes] == ["done", "failed", "failed", "done"]
    assert outcomes[1].problems[0].endswith("its last line")
    assert "did not start before" in outcomes[2].problems[0]
    assert site.begun == ["doctor", "colocated-2", "colocated-2-levels"]


def test_a_call_ends_in_time_and_what_was_not_chosen_is_left_out(site: Site) -> None:
    outcomes = site.run(FOUR, call_s=125.0, taken=[FOUR[0], FOUR[1], FOUR[3]])
    assert [each.state for each in outcomes] == ["done", "done", "left out", "not yet"]
    assert site.now <= 125.0


def test_a_stack_is_stopped_within_the_call(site: Site) -> None:
    site.run(FOUR[1:], call_s=140.0)
    assert site.stop_within_s == [140.0 + run.GRACE_S - 120.0]


def test_eight_gpus_are_measured_in_calls_of_ten_minutes(site: Site) -> None:
    """As docs/disaggregation.md has it."""
    site.starts, plan = estimates.GPU_STARTS, full_plan()

    def calls(budget_s: float) -> tuple[list[int], list[str]]:
        """Seconds of each call until no part is to come, and what was left out."""
        seconds, states = [], ["not yet"]
        while "not yet" in states:
            began = site.now
            states = site.call(plan, 560.0, budget_s)
            seconds.append(round(site.now - began))
        return seconds, [p.name for p, s in zip(plan, states, strict=True) if s == "left out"]

    drafts = [
        "split-2-6-drafts-handoff", "split-1-7-drafts-handoff", "colocated-8-drafts-levels",
    ]  # fmt: skip
    assert calls(1650.0) == ([484, 462, 558, 142], drafts), "4 s are left: not enough for more"
    assert calls(2400.0) == ([308], [])


def test_what_a_budget_left_out_is_measured_only_with_a_larger_one(site: Site) -> None:
    assert site.call(FOUR, 1e6, 165.0) == ["done", "done", "done", "left out"]
    assert site.call(FOUR, 1e6, 165.0) == [*["done before"] * 3, "left out"]
    (site.settings.file(FOUR[2])).unlink()
    assert site.call(FOUR, 1e6, 165.0) == [*["done before"] * 2, "left out", "left out"]
    assert site.now == 130.0
    assert site.call(FOUR, 1e6, 400.0) == [*["done before"] * 2, "done", "done"]


def test_results_are_packed_into_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    pack(tmp_path / "all.tar.gz", [tmp_path / "a.json", tmp_path / "b.json"])
    with tarfile.open(tmp_path / "all.tar.gz") as packed:
        assert packed.getnames() == ["a.json"]


HANDOFFS = {"64": {"stages": {"copy": {"p50_ms": 1.5}, "queue": {"p50_ms": 9.0}}}}


def throughput(rates: dict[int, float]) -> dict[str, Any]:
    levels = [
        {"concurrency": n, "requests": n, "failed": 0, "not_sent": 0, "total_tok_s": rate}
        for n, rate in rates.items()
    ]
    return {"settings": {"input_len": 1024, "output_len": 1024}, "results": {"levels": levels}}


def test_the_summary_has_measured_over_predicted_for_every_level(tmp_path: Path) -> None:
    here = settings(tmp_path, Table.read())
    plan = parts("split:1+1/levels", "split:1+1/crowd", "split:1+1/handoff", "split:1+1/soak")
    here.file(plan[0]).write_text(json.dumps(throughput({1: 846.0, 2: 600.0})))
    here.file(plan[1]).write_text(json.dumps(throughput({256: 16_000.0})))
    here.write(plan[2], {}, HANDOFFS, [])
    found = tables(here, plan)["split-1-1"]
    assert found["total_tok_s"] == {1: 846.0, 2: 600.0, 256: 16_000.0}
    assert found["measured_over_predicted"][1] == pytest.approx(1.0, abs=0.01)
    assert found["measured_over_predicted"][2] < 0.5
    assert found["score"] is None, "levels are missing"
    assert found["handoff"] == {"64": {"copy": {"p50_ms": 1.5}}}
    shown = list(lines(tables(here, plan)))
    assert shown[1].split() == ["1", "846", "(1.00", "x)"]
    assert shown[-1].startswith("split-1-1 handoff: ")


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


def test_arguments_that_mean_nothing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(command.main)
    monkeypatch.setattr(command, "count_gpus", lambda: 4)
    for arguments, said in (
        (["--setups", "three"], "three"),
        (["--setups", "split:1+1", "--parts", "leveles"], "leveles"),
        (["--setups", "split:1+1", "--modes", "fast"], "fast"),
        (["--setups", "split:1+1", "--size", "huge"], "huge"),
        (["--setups", "colocated:8", "--device", "cuda"], "needs 8 GPUs of 4"),
    ):
        told = CliRunner().invoke(app, arguments)
        assert told.exit_code == 2
        assert said in told.output


def test_levels_have_as_many_requests_as_they_hold_at_once() -> None:
    sizes = command._sizes("full", "1,128", 3)
    assert [sizes.level(n).requests for n in sizes.levels] == [3, 128]
    assert command._sizes("full", "", 0) == FULL


def test_the_summary_keeps_what_calls_before_said(tmp_path: Path) -> None:
    here, (part,) = settings(tmp_path), parts("split:1+1/levels")
    here.file(part).write_text(json.dumps(throughput({1: 100.0})))
    failed = run.Outcome(part, "failed", 3.0, ["it broke"])
    call = Conductor(here, STARTS, 0.0)

    def told(outcome: run.Outcome) -> bool:
        return command._told(here, Earlier.read(here.summary_file), [outcome], call)

    call.spent_s = 40.0
    assert not told(failed)
    call.started_s = {"split-1-1": 60.0}
    assert told(run.Outcome(part, "done", 12.0))
    call.spent_s, call.started_s = 0.0, {}
    assert told(run.Outcome(part, "done before"))
    document = json.loads(here.summary_file.read_text())
    assert document["results"]["parts"][0]["seconds"] == 12.0
    assert document["results"]["started_s"] == {"split-1-1": 60.0}
    assert document["results"]["spent_s"] == 80.0
    assert document["ok"]


def test_the_plan_is_shown_and_nothing_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command.main)
    monkeypatch.setattr(sys, "argv", ["node"])
    arguments = ["--setups", "split:2+6,split:1+7,colocated:8", "--device", "cuda", "--plan"]
    told = CliRunner().invoke(app, [*arguments, "--out-dir", str(tmp_path), "--budget-s", "900"])
    assert told.exit_code == 0
    assert "split-2-6-levels" in told.output
    assert "left out" in told.output
    assert list(tmp_path.iterdir()) == []


def invoked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    app = typer.Typer()
    app.command()(command.main)
    monkeypatch.setattr(sys, "argv", ["node"])
    return CliRunner().invoke(app, ["--setups", "split:1+1", "--size", "tiny", *arguments])


def test_a_call_with_nothing_to_do_says_so_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (part,), here = parts("split:1+1/handoff"), settings(tmp_path)
    here.write(part, {}, HANDOFFS, [])
    arguments = ["--parts", "handoff", "--modes", "plain", "--prefix", "t-", "--out-dir"]
    told = invoked(monkeypatch, *arguments, str(tmp_path))
    assert told.exit_code == 3
    assert "nothing was measured: all 1 parts were done before" in told.output
    assert not here.summary_file.exists()
    told = invoked(monkeypatch, *arguments, str(tmp_path), "--call-s", "0")
    assert told.exit_code == 0
    assert here.summary_file.exists()


def test_a_file_of_something_else_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("split-1-1-handoff.json", "split-1-1-levels.json", "summary.json"):
        file = tmp_path / name
        file.write_text('{"handoffs": 462}')
        told = invoked(monkeypatch, "--out-dir", str(tmp_path))
        assert told.exit_code == 2
        assert name in "".join(told.output.split("\n"))
        assert file.read_text() == '{"handoffs": 462}'
        file.unlink()


def test_results_go_to_a_folder_of_their_own_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    told = invoked(monkeypatch, "--plan", "--modes", "plain,drafts", "--prefix", "cpu-node-")
    assert "done before" not in told.output
