"""How ``bench.spread_step`` drives its processes, which stand in for GPUs here."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from bench import result_file, spread_step
from bench.processes import MemberFailed, Members
from decode import spread_table
from engine.model.registry import read_config

WAITED = {"rows": [0.0, 150.0], "results": [50.0, 30.0]}
MEMBER = f"""
import json, sys
ANSWERS = {{
    "load": {{"handle": "00", "load_s": 1.0}}, "join": {{}}, "truth": {{}},
    "stall": {{"ms": 5.5, "read": [[True, [1]]] * 2, "equal": True}},
    "bits": {{"equal": True, "finite": True, "num_accepted": 5}},
    "lend": {{"equal": True, "ms": 9.5, "came": 37}},
    "time": {{"ms": 7.5, "waited_us": {WAITED}}},
}}
print("not an answer", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    do = asked["do"]
    if do == "load" and asked["max_drafts"]:
        ANSWERS["time"]["ms"] = 8.5
    if do == WRONG:
        BEHAVE
    print("@" + json.dumps(ANSWERS[do]), flush=True)
"""


def command(wrong: str = "", behave: str = "pass") -> list[str]:
    source = MEMBER.replace("WRONG", repr(wrong)).replace("BEHAVE", behave)
    return [sys.executable, "-c", textwrap.dedent(source)]


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: list[str]) -> tuple[int, dict]:
    monkeypatch.setattr(spread_step, "Members", lambda count, logs, _: Members(count, logs, member))
    out = tmp_path / "out.json"
    with pytest.raises(spread_step.typer.Exit) as ended:
        spread_step.main(
            gpus=2, models="small,drafts,full,full-drafts", logs=tmp_path / "logs", out=out,
            table=tmp_path / "table.json",
        )  # fmt: skip
    return ended.value.exit_code, result_file.load(out)


def test_every_case_of_both_models_is_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found = run(tmp_path, monkeypatch, command())
    assert code == 0
    assert found["ok"], found["problems"]
    results = found["results"]
    assert {max(row["lives"]) for row in results["small"]["bits"]} >= {1, 8, 32, 64, 128, 256}
    assert results["small"]["stall"]["named"]
    assert results["drafts"]["stall"]["taken_back"]
    assert len(results["drafts"]["bits"]) > 3
    totals = [row["total"] for row in results["full"]["time"]]
    assert {32, 64, 128, 256} <= set(totals)
    assert results["full"]["lend"] == [{"live": 64, "equal": True, "ms": 9.5, "came": 37}]
    assert results["full"]["time"][0]["exchange_ms"] == 0.23
    cases = [(row["lives"][0], row["num_drafts"]) for row in results["full-drafts"]["time"]]
    assert (32, 3) in cases
    assert (64, 3) in cases
    assert (128, 1) not in cases, "not timed"
    table = spread_table.read(tmp_path / "table.json")
    assert table.source == "measured"
    assert table.local_ms(16, 0) == 8.5, "an engine with a draft layer, as workers have"
    assert table.local_ms(128, 0) == 7.5
    assert table.has(2, 3)
    assert "not an answer" in (tmp_path / "logs/small/member-0.txt").read_text()


def test_what_is_timed_on_a_gpu_that_members_share_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(spread_step.typer.BadParameter, match="--table"):
        spread_step.main(share_gpu=True, table=tmp_path / "table.json")


def test_bits_that_differ_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave = "ANSWERS['bits']['equal'] = False"
    code, found = run(tmp_path, monkeypatch, command("load", behave))
    assert code == 1
    assert not found["ok"]
    assert found["results"]["full"]["time"], "the other cases are measured all the same"


def test_a_model_whose_process_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found = run(tmp_path, monkeypatch, command("stall", "sys.exit('the GPU is lost')"))
    assert code == 1
    ended = "the process has ended"
    assert f"small: stall: member 0: {ended}; member 1: {ended}" in found["problems"]
    assert found["results"]["full"]["time"]
    assert "the GPU is lost" in (tmp_path / "logs/small/member-0.txt").read_text()


def test_a_member_that_does_not_answer_is_named(tmp_path: Path) -> None:
    hangs = command("join", "import threading; threading.Event().wait()")
    with Members(1, tmp_path, hangs) as members, pytest.raises(MemberFailed, match="member 0"):
        members.ask("join", 0.2, {})


def test_the_small_model_is_the_first_layers_of_the_full_one(tmp_path: Path) -> None:
    small = read_config(spread_step.model_folder(tmp_path, 4))
    full = read_config(spread_step.model_folder(tmp_path, None))
    assert small.layers == full.layers[:4]
    assert json.loads((tmp_path / "config.json").read_text())["text_config"]["num_experts"] == 256
