"""Pools that follow the load beside colocated workers: both are measured by one command."""

from pathlib import Path

from bench import result_file
from bench.commands import run
from bench.pools_service import Conversations, arguments_of, options_of

TINY = Path(__file__).parents[2] / "models" / "tiny"
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:00:00.0000000,200,20
2023-11-16 18:00:00.2000000,300,40
2023-11-16 18:00:00.4000000,100,30
2023-11-16 18:00:01.0000000,400,10
"""


def test_a_trace_and_conversations_are_measured_on_both(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "pools.json"
    trace.write_text(TRACE)
    words = [
        "bench.pools_service", "--model", str(TINY), "--stacks", "auto:1+1,colocated:2",
        "--loads", f"{trace}:4,agents:2", "--seconds", "2", "--turns", "2", "--context", "300",
        "--new", "40", "--answer", "8", "--out", str(out), "--",
        "--device", "cpu", "--speculate", "off",
    ]  # fmt: skip
    ended = run(words, within_s=170)
    assert ended.exit_code == 0, ended.said
    document = result_file.load(out)
    for stack in ("auto:1+1", "colocated:2"):
        found = document["results"][stack][f"{trace}:4"]
        assert (found["completed"], found["failed"]) == (4, 0)
        assert set(found["counters"]) >= {"role_changes", "moves", "crossed_pools"}
        assert {"prefill", "running", "waiting"} <= set(found["pools"][0])
        agents = document["results"][stack]["agents:2"]
        assert (agents["completed"], agents["failed"]) == (4, 0)
        assert agents["hit_rate"] > 0.5


def test_the_loads_and_stacks_that_it_knows(tmp_path: Path) -> None:
    assert arguments_of("auto:2+6", ["--target-ttft-ms", "500"]) == [
        "--role", "split", "--prefill", "2", "--decode", "6", "--pools", "auto",
        "--target-ttft-ms", "500",
    ]  # fmt: skip
    assert arguments_of("colocated:2", []) == ["--role", "colocated", "--workers", "2"]
    agents = options_of("agents:32", tmp_path, Conversations(), 60.0, [])
    assert agents == [
        "--agents", "32", "--turns", "3", "--agents-shape", "deep", "--agents-own-prefix", "0",
        "--agents-shared-prefix", "57600", "--agents-turn-len", "6400", "--output-len", "400",
    ]  # fmt: skip
    shifting = options_of("shift:6", tmp_path, Conversations(), 60.0, ["--slo-ttft-ms", "500"])
    assert (tmp_path / "shift.csv").read_text().count(",8192,32") > 100
    assert shifting[-2:] == ["--slo-ttft-ms", "500"]
