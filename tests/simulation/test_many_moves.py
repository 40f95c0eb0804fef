"""The command that moves many sequences in simulated clusters."""

from pathlib import Path

from bench import result_file
from tests.simulation import many_moves


def test_scenarios_run_until_so_many_have_moved(tmp_path: Path) -> None:
    out = tmp_path / "moves.json"
    many_moves.main(moves=40, seed=1, out=out)
    found = result_file.load(out, "simulated-moves")["results"]
    assert found["moved"] >= 40
    assert (found["wrong"], found["lost"], found["leaked"]) == (0, 0, 0)
